// rhea, the decoder of @azure/event-hubs: reads one message in hexadecimal from each line of standard
// input and prints the number and the error of each that it cannot decode.
import { createInterface } from "node:readline";
import rhea from "rhea";

// rhea goes on after a section that it cannot make sense of, with a warning: that is a failure too.
let warnings = [];
console.warn = (text) => warnings.push(text);

let number = 0;
for await (const line of createInterface({ input: process.stdin })) {
  warnings = [];
  try {
    rhea.message.decode(Buffer.from(line, "hex"));
  } catch (error) {
    warnings.push(error.message);
  }
  if (warnings.length > 0) console.log(`${number}\t${warnings[0]}`);
  number += 1;
}
