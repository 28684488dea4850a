package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// administer makes, changes, reads and deletes topics, configs, offsets and groups.
func administer(ctx context.Context, scene *Scene) (Result, error) {
	admin := scene.Admin
	brokers, err := admin.ListBrokers(ctx)
	if err != nil {
		return nil, err
	}
	topic, err := scene.NewTopic(ctx, "topic", 2)
	if err != nil {
		return nil, err
	}
	_, again := admin.CreateTopic(ctx, 2, 1, nil, topic)
	if !errors.Is(again, kerr.TopicAlreadyExists) {
		return nil, expect[error]("creating it again", again, kerr.TopicAlreadyExists)
	}
	if grown, err := admin.UpdatePartitions(ctx, 3, topic); err != nil || grown.Error() != nil {
		return nil, errors.Join(err, grown.Error())
	}
	if err := configure(ctx, admin, topic); err != nil {
		return nil, err
	}
	if err := scene.Write(ctx, topic, 0, 90); err != nil {
		return nil, err
	}
	if err := moveOffsets(ctx, scene, topic); err != nil {
		return nil, err
	}
	if deleted, err := admin.DeleteTopics(ctx, topic); err != nil || deleted.Error() != nil {
		return nil, errors.Join(err, deleted.Error())
	}
	// Another client: this one remembers for a moment what it was told last.
	client, err := scene.Client()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	topics, err := kadm.NewClient(client).ListTopics(ctx, topic)
	if err != nil {
		return nil, err
	}
	gone := topics[topic].Err
	return Result{"brokers": len(brokers)}, expect("a deleted topic", errors.Is(gone, kerr.UnknownTopicOrPartition), true)
}

func configure(ctx context.Context, admin *kadm.Client, topic string) error {
	wanted := "3600000"
	change := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &wanted}}
	if altered, err := admin.AlterTopicConfigs(ctx, change, topic); err != nil || altered[0].Err != nil {
		return errors.Join(err, altered[0].Err)
	}
	// Any broker answers, also one that learns of the change a moment later.
	found := ""
	for deadline := time.Now().Add(15 * time.Second); found != wanted && time.Now().Before(deadline); {
		configs, err := admin.DescribeTopicConfigs(ctx, topic)
		if err != nil {
			return err
		}
		described := slices.IndexFunc(configs[0].Configs, func(each kadm.Config) bool { return each.Key == "retention.ms" })
		if described < 0 {
			return errors.New("retention.ms is not described")
		}
		found = configs[0].Configs[described].MaybeValue()
	}
	return expect("retention.ms", found, wanted)
}

// moveOffsets commits as an administrator, looks at the lag, and deletes offsets, group and records.
func moveOffsets(ctx context.Context, scene *Scene, topic string) error {
	admin, name := scene.Admin, scene.Name+"-offsets"
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return err
	}
	total := int64(0)
	ends.Each(func(offset kadm.ListedOffset) { total += offset.Offset })
	if err := expect("records written", total, 90); err != nil {
		return err
	}
	committed := make(kadm.Offsets)
	for partition := range int32(3) {
		committed.AddOffset(topic, partition, 1, -1)
	}
	if err := admin.CommitAllOffsets(ctx, name, committed); err != nil {
		return err
	}
	lags, err := admin.Lag(ctx, name)
	if err != nil {
		return err
	}
	if err := expect("lag", lags[name].Lag.Total(), 87); err != nil {
		return err
	}
	groups, err := admin.ListGroups(ctx)
	if err != nil {
		return err
	}
	if err := expect("state", groups[name].State, "Empty"); err != nil {
		return err
	}
	if _, err := admin.DeleteGroup(ctx, name); err != nil {
		return err
	}
	left, err := admin.FetchOffsets(ctx, name)
	if err != nil {
		return err
	}
	if err := expect("offsets of a deleted group", len(left), 0); err != nil {
		return err
	}
	if deleted, err := admin.DeleteRecords(ctx, committed); err != nil || deleted.Error() != nil {
		return errors.Join(err, deleted.Error())
	}
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return err
	}
	found, _ := starts.Lookup(topic, 0)
	return expect("the start after records were deleted", found.Offset, 1)
}
