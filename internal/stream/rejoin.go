package stream

import (
	"context"
	"errors"
	"time"

	"github.com/IBM/sarama"
	"github.com/lovoo/goka"
)

// rejoining wraps a consumer group so that an ordinary rebalance is followed by the next session at once. Goka sleeps 5 s
// after every session, without heartbeats (design, section 3, fact 11), which makes every rebalance last as long. It also
// asks, before each session, whether it may consume what it was given.
func rejoining(inner goka.ConsumerGroupBuilder, check func(ctx context.Context, claims map[string][]int32) error, clock func() time.Time) goka.ConsumerGroupBuilder {
	return func(brokers []string, group, clientID string) (sarama.ConsumerGroup, error) {
		cg, err := inner(brokers, group, clientID)
		if err != nil {
			return nil, err
		}
		return &rejoiningGroup{ConsumerGroup: cg, check: check, clock: clock}, nil
	}
}

type rejoiningGroup struct {
	sarama.ConsumerGroup
	check func(ctx context.Context, claims map[string][]int32) error
	clock func() time.Time
}

// A session that ends sooner than this by itself is one of many in a row: Goka's sleep then keeps them from spinning.
const shortSession = 2 * time.Second

func (g *rejoiningGroup) Consume(ctx context.Context, topics []string, h sarama.ConsumerGroupHandler) error {
	short := 0
	for {
		started := g.clock()
		w := &sessionWatch{ConsumerGroupHandler: h, check: g.check}
		err := g.ConsumerGroup.Consume(ctx, topics, w)
		if err != nil || ctx.Err() != nil || !errors.Is(w.cause, sarama.ErrRebalanceInProgress) {
			return err
		}
		if g.clock().Sub(started) >= shortSession {
			short = 0
		} else if short++; short > 3 {
			return nil
		}
	}
}

// sessionWatch notes why a session ended. Sarama calls Setup and Cleanup from the goroutine that called Consume.
type sessionWatch struct {
	sarama.ConsumerGroupHandler
	check func(ctx context.Context, claims map[string][]int32) error
	cause error
}

func (w *sessionWatch) Setup(s sarama.ConsumerGroupSession) error {
	if err := w.check(s.Context(), s.Claims()); err != nil {
		return err
	}
	return w.ConsumerGroupHandler.Setup(s)
}

func (w *sessionWatch) Cleanup(s sarama.ConsumerGroupSession) error {
	w.cause = context.Cause(s.Context())
	return w.ConsumerGroupHandler.Cleanup(s)
}
