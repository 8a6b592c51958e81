package deadletter

import (
	"context"
	"errors"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// incarnation remembers which topic of its name letters were written to.
type incarnation struct {
	mu sync.Mutex
	id kadm.TopicID // zero: nothing was written yet
}

// learn asks for the topic's id before the first letter is written: nothing else tells later whether the topic is another one.
func (i *incarnation) learn(ctx context.Context, client *kgo.Client, topic string) (err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.id == (kadm.TopicID{}) {
		i.id, err = topicID(ctx, client, topic)
	}
	return err
}

// adopt makes the client forget a topic that was deleted and created again: by itself it fails with UNKNOWN_TOPIC_ID until it is closed. A
// topic that is still the one written to must not be forgotten: sequence numbers would begin anew, and the broker could take a letter for
// one that it has.
func (i *incarnation) adopt(ctx context.Context, client *kgo.Client, topic string, err error) {
	if !errors.Is(err, kerr.UnknownTopicID) {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	// Where the topic does not exist or nobody answers, the next try asks again.
	if now, err := topicID(ctx, client, topic); err == nil && now != i.id {
		client.PurgeTopicsFromClient(topic)
		i.id = now
	}
}

func topicID(ctx context.Context, client *kgo.Client, topic string) (kadm.TopicID, error) {
	topics, err := kadm.NewClient(client).ListTopics(ctx, topic)
	if err == nil {
		err = topics[topic].Err
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return topics[topic].ID, err
}
