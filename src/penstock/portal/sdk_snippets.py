"""Ready programs for each SDK, with the reader's own connection string or token filled in."""

from __future__ import annotations

Snippets = list[tuple[str, str]]


def with_connection_string(string: str, hub: str, ca_file: str) -> Snippets:
    verify = f', connection_verify="{ca_file}"' if ca_file else ""
    return [
        (
            "Python",
            "# pip install azure-eventhub\n"
            "from azure.eventhub import EventData, EventHubProducerClient\n"
            "producer = EventHubProducerClient.from_connection_string(\n"
            f'    "{string}",\n    eventhub_name="{hub}"{verify})\n'
            "with producer:\n"
            "    batch = producer.create_batch()\n"
            '    batch.add(EventData("hello"))\n'
            "    producer.send_batch(batch)\n",
        ),
        (
            "JavaScript",
            "// npm install @azure/event-hubs\n"
            + (f"// NODE_EXTRA_CA_CERTS={ca_file} node send.mjs\n" if ca_file else "")
            + 'import { EventHubProducerClient } from "@azure/event-hubs";\n'
            "const producer = new EventHubProducerClient(\n"
            f'  "{string}", "{hub}");\n'
            "const batch = await producer.createBatch();\n"
            'batch.tryAdd({ body: "hello" });\n'
            "await producer.sendBatch(batch);\n"
            "await producer.close();\n",
        ),
        (
            "C#",
            "// dotnet add package Azure.Messaging.EventHubs\n"
            "using Azure.Messaging.EventHubs;\n"
            "using Azure.Messaging.EventHubs.Producer;\n"
            "await using var producer = new EventHubProducerClient(\n"
            f'    "{string}", "{hub}");\n'
            "using var batch = await producer.CreateBatchAsync();\n"
            'batch.TryAdd(new EventData("hello"));\n'
            "await producer.SendAsync(batch);\n",
        ),
        (
            "Java",
            "// com.azure:azure-messaging-eventhubs\n"
            "EventHubProducerClient producer = new EventHubClientBuilder()\n"
            f'    .connectionString("{string}", "{hub}")\n'
            "    .buildProducerClient();\n"
            "EventDataBatch batch = producer.createBatch();\n"
            'batch.tryAdd(new EventData("hello"));\n'
            "producer.send(batch);\n"
            "producer.close();\n",
        ),
        (
            "Go",
            "// go get github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs\n"
            "producer, _ := azeventhubs.NewProducerClientFromConnectionString(\n"
            f'    "{string}", "{hub}", nil)\n'
            "batch, _ := producer.NewEventDataBatch(ctx, nil)\n"
            '_ = batch.AddEventData(&azeventhubs.EventData{Body: []byte("hello")}, nil)\n'
            "_ = producer.SendEventDataBatch(ctx, batch, nil)\n",
        ),
        *_of_penstock(string, hub, ca_file),
    ]


def _of_penstock(string: str, hub: str, ca_file: str) -> Snippets:
    return [
        (
            "Spark",
            'events = (spark.readStream.format("eventhubs")\n'
            f'    .option("connectionString", "{string}")\n'
            f'    .option("eventHubName", "{hub}")'
            + (f'\n    .option("tls.caFile", "{ca_file}")' if ca_file else "")
            + "\n    .load())\n",
        ),
        (
            "Command line",
            f"export PENSTOCK_CONNECTION_STRING='{string}'\n"
            f"echo hello | penstock send {hub} --lines -\n",
        ),
    ]


def with_token(
    token: str,
    *,
    endpoint: str,
    host: str,
    https: str,
    hub: str,
    publisher: str | None,
    ca_file: str,
) -> Snippets:
    place = f"{hub}/publishers/{publisher}" if publisher else hub
    ca = f" --cacert {ca_file}" if ca_file else ""
    verify = f', connection_verify="{ca_file}"' if ca_file else ""
    string = f"{endpoint};SharedAccessSignature={token}"
    return [
        (
            "HTTPS (curl)",
            f"curl{ca} -X POST '{https}/{place}/messages' \\\n"
            f"  -H 'Authorization: {token}' \\\n"
            "  -H 'Content-Type: application/json' -d '{\"message\": \"hello\"}'\n",
        ),
        (
            "Python",
            "# pip install azure-eventhub\n"
            "from azure.eventhub import EventData, EventHubProducerClient\n"
            "producer = EventHubProducerClient.from_connection_string(\n"
            f'    "{string}",\n    eventhub_name="{hub}"{verify})\n'
            "with producer:\n"
            '    producer.send_batch([EventData("hello")])\n',
        ),
        ("Connection string", string),
    ]
