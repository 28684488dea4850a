package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	soakMembers = 2
	soakBatch   = 1000
)

var soakKinds = map[string]Protocol{
	"go-copy":          cooperative,
	"go-copy-consumer": consumerProtocol,
}

// soak copies a topic in transactions until standard input ends: the arguments are the topic and
// the kinds of groups. A kind is also the name of its group and of the topic that it writes to. An
// error after which a member starts again is printed as "AGAIN kind error".
func soak(ctx context.Context, scene *Scene) (Result, error) {
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	topic := flag.Arg(1)
	members := sync.WaitGroup{}
	for _, kind := range flag.Args()[2:] {
		protocol, is := soakKinds[kind]
		if !is {
			return nil, fmt.Errorf("no kind %s", kind)
		}
		for number := range soakMembers {
			members.Go(func() {
				for stop.Err() == nil {
					if err := soakCopy(stop, scene, topic, kind, number, protocol); err != nil && stop.Err() == nil {
						fmt.Println("AGAIN", kind, err)
					}
				}
			})
		}
	}
	members.Wait()
	return Result{}, nil
}

// soakCopy is one member, until it is stopped or its client has failed.
func soakCopy(ctx context.Context, scene *Scene, topic, kind string, number int, protocol Protocol) error {
	session, err := kgo.NewGroupTransactSession(scene.options(append([]kgo.Opt{
		kgo.TransactionalID(fmt.Sprintf("%s-%d", kind, number)),
		kgo.ConsumerGroup(kind),
		kgo.ConsumeTopics(topic),
		kgo.DefaultProduceTopic(kind),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
	}, protocol.options...))...)
	if err != nil {
		return err
	}
	defer session.Close()
	for round := 1; ctx.Err() == nil; round++ {
		fetches := session.PollRecords(ctx, soakBatch)
		if ctx.Err() != nil {
			return nil
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			return err
		}
		var failed error
		promise := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(record *kgo.Record) {
			session.Produce(ctx, &kgo.Record{Key: record.Key, Value: record.Value}, promise.Promise())
		})
		failed = promise.Err()
		// Every seventh is given up.
		wanted := kgo.TransactionEndTry(failed == nil && round%7 != 0)
		if _, err := session.End(context.Background(), wanted); err != nil {
			return errors.Join(failed, err)
		}
	}
	return nil
}
