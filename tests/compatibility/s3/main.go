// An S3 server in memory for the tests of Capture: prints its address, runs until it is ended.
//
// What it is asked with another access key than the first argument it refuses, as S3 does; it does
// not check signatures.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

const denied = `<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>InvalidAccessKeyId</Code><Message>The access key is not known.</Message></Error>`

func main() {
	credential := "Credential=" + os.Args[1] + "/"
	storage := gofakes3.New(s3mem.New()).Server()
	checked := http.HandlerFunc(func(answer http.ResponseWriter, asked *http.Request) {
		if !strings.Contains(asked.Header.Get("Authorization"), credential) {
			answer.Header().Set("Content-Type", "application/xml")
			answer.WriteHeader(http.StatusForbidden)
			fmt.Fprint(answer, denied)
			return
		}
		storage.ServeHTTP(answer, asked)
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("http://" + listener.Addr().String())
	log.Fatal(http.Serve(listener, checked))
}
