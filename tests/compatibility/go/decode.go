// go-amqp, the decoder of azeventhubs: `compatibility-go decode` reads one message in hexadecimal
// from each line of standard input and prints the number and the error of each that it cannot decode.
package main

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/Azure/go-amqp"
)

func decodeAll() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for number := 0; lines.Scan(); number++ {
		if failure := decodeError(lines.Text()); failure != nil {
			fmt.Printf("%d\t%v\n", number, failure)
		}
	}
	must(lines.Err())
}

func decodeError(text string) (failure error) {
	defer func() {
		if cause := recover(); cause != nil {
			failure = fmt.Errorf("panic: %v", cause)
		}
	}()
	encoded, err := hex.DecodeString(text)
	must(err)
	var message amqp.Message
	return message.UnmarshalBinary(encoded)
}
