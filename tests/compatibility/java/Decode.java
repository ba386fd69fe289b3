import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.qpid.proton.message.Message;

/**
 * proton-j, the decoder of azure-messaging-eventhubs: reads one message in hexadecimal from each line of
 * standard input and prints the number and the error of each that it cannot decode.
 */
public final class Decode {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(
            new InputStreamReader(System.in, StandardCharsets.UTF_8));
        int number = 0;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            byte[] encoded = HexFormat.of().parseHex(line);
            try {
                Message.Factory.create().decode(encoded, 0, encoded.length);
            } catch (RuntimeException error) {
                System.out.println(number + "\t" + String.valueOf(error).replace('\n', ' '));
            }
            number++;
        }
    }
}
