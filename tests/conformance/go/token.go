package main

import (
	"context"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// useToken authenticates with a delegation token, the id of which is FRANZ_TOKEN and the HMAC
// FRANZ_HMAC, and writes and reads records.
func useToken(ctx context.Context, scene *Scene) (Result, error) {
	auth := scram.Auth{User: os.Getenv("FRANZ_TOKEN"), Pass: os.Getenv("FRANZ_HMAC"), IsToken: true}
	client, err := scene.Client(
		kgo.SASL(auth.AsSha512Mechanism()),
		kgo.DefaultProduceTopic(scene.Name),
		kgo.ConsumeTopics(scene.Name),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.AllowAutoTopicCreation(),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	// Tells of a refusal; the others try until their time is up.
	if err := client.Ping(ctx); err != nil {
		return nil, err
	}
	for number := range 10 {
		record := kgo.StringRecord(fmt.Sprint(number))
		if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
			return nil, err
		}
	}
	read := 0
	for read < 10 {
		fetched := client.PollFetches(ctx)
		if err := fetched.Err(); err != nil {
			return nil, err
		}
		read += fetched.NumRecords()
	}
	return Result{"read": read}, nil
}
