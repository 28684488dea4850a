// A client program on franz-go: what an application does with topics, groups and transactions,
// checked by itself. It prints one line of JSON when all was well, else says what was not and ends
// with status 1. Called by tests/conformance/test_franz_go.py, one scenario a run.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Result is what a scenario has to tell, printed as JSON.
type Result map[string]any

// Scenario uses names that begin with Scene.Name and nothing else of the cluster.
type Scenario func(ctx context.Context, scene *Scene) (Result, error)

var scenarios = map[string]Scenario{
	"admin":                 administer,
	"cooperative":           group(cooperative),
	"consumer-protocol":     group(consumerProtocol),
	"transactions":          copyExactlyOnce(cooperative),
	"transactions-consumer": copyExactlyOnce(consumerProtocol),
	"regex":                 subscribeByRegex,
	"restarts":              surviveRestarts,
	"soak":                  soak,
	"etl":                   extractTransformLoad,
	"token":                 useToken,
}

// Scene is the cluster under test and an administrator of it.
type Scene struct {
	Bootstrap string
	Name      string
	Records   int
	Admin     *kadm.Client
	client    *kgo.Client
}

// Client is a new one with these options.
func (s *Scene) Client(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(s.options(options)...)
}

func (s *Scene) options(options []kgo.Opt) []kgo.Opt {
	given := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(s.Bootstrap, ",")...),
		// A fetch that waits keeps partitions that are new from being fetched.
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.MetadataMinAge(50 * time.Millisecond),
	}
	return append(given, options...)
}

// NewTopic makes one with as many replicas as the cluster has by default. Its name begins with that
// of the scene.
func (s *Scene) NewTopic(ctx context.Context, suffix string, partitions int32) (string, error) {
	name := s.Name + "-" + suffix
	_, err := s.Admin.CreateTopic(ctx, partitions, -1, nil, name)
	if errors.Is(err, kerr.TopicAlreadyExists) {
		err = nil // the request was sent again, as its answer was lost
	}
	return name, err
}

// Write produces `count` records with the numbers from `start` on as values, spread by key.
func (s *Scene) Write(ctx context.Context, topic string, start, count int) error {
	client, err := s.Client(kgo.DefaultProduceTopic(topic))
	if err != nil {
		return err
	}
	defer client.Close()
	records := make([]*kgo.Record, count)
	for at := range records {
		text := []byte(fmt.Sprint(start + at))
		records[at] = &kgo.Record{Key: text, Value: text}
	}
	return client.ProduceSync(ctx, records...).FirstErr()
}

// expect is an error unless both are equal.
func expect[T comparable](what string, found, wanted T) error {
	if found == wanted {
		return nil
	}
	return fmt.Errorf("%s: %v instead of %v", what, found, wanted)
}

func run() error {
	bootstrap := flag.String("bootstrap", "127.0.0.1:9092", "where the cluster is")
	name := flag.String("name", "", "what names of topics and groups begin with")
	records := flag.Int("records", 3000, "how many records etl copies")
	timeout := flag.Duration("timeout", time.Minute, "how long the scenario may take")
	flag.Parse()
	scenario, is := scenarios[flag.Arg(0)]
	if !is || *name == "" {
		names := make([]string, 0, len(scenarios))
		for known := range scenarios {
			names = append(names, known)
		}
		slices.Sort(names)
		return fmt.Errorf("usage: -name NAME [-bootstrap HOST:PORT] one of %v", names)
	}
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	scene := &Scene{Bootstrap: *bootstrap, Name: *name, Records: *records}
	client, err := scene.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	scene.Admin, scene.client = kadm.NewClient(client), client
	result, err := scenario(ctx, scene)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
