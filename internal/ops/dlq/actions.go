package dlq

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// Service works on the dead letters of all consumers. It is safe for concurrent use. All fields but Hashers are required.
type Service struct {
	Kafka      stream.KafkaConfig
	Admin      *stream.Admin
	Pool       *pgxpool.Pool
	Logger     *slog.Logger
	Clock      func() time.Time
	MaxReturns int               // dead_letters.max_returns
	Rate       int               // dead_letters.replay_rate
	Hashers    map[string]string // partitioner of each consumer's producers, for letters that do not name a partition; default crc32
	Instance   string            // who acts, in the records
}

// Action is what was done last with a letter.
type Action struct {
	Action  string    `json:"action"`
	At      time.Time `json:"at"`
	By      string    `json:"by"`
	Reason  string    `json:"reason,omitempty"`
	Returns int       `json:"returns"`
}

// states sets what was done with letters of a topic. On an error all of them are unknown.
func (s *Service) states(ctx context.Context, t topic, letters []*Letter) error {
	byID := make(map[string]*Letter, len(letters))
	partitions, offsets := make([]int32, len(letters)), make([]int64, len(letters))
	for i, l := range letters {
		byID[l.ID] = l
		partitions[i], offsets[i] = l.Partition, l.Offset
	}
	err := func() error {
		rows, err := s.Pool.Query(ctx, `SELECT a."partition", a."offset", a.action, a.at, a.by, a.reason, a.returns
			FROM unnest($2::integer[], $3::bigint[]) AS i (p, o)
			JOIN vitrina.dead_letter_actions AS a ON a.topic_id = $1 AND a."partition" = i.p AND a."offset" = i.o`, [16]byte(t.id), partitions, offsets)
		if err != nil {
			return err
		}
		var p int32
		var o int64
		var a Action
		_, err = pgx.ForEachRow(rows, []any{&p, &o, &a.Action, &a.At, &a.By, &a.Reason, &a.Returns}, func() error {
			done := a
			done.At = done.At.UTC()
			l := byID[ID(p, o)]
			l.State, l.Action = done.Action, &done
			return nil
		})
		return err
	}()
	if err != nil {
		for _, l := range letters {
			l.State = StateUnknown
		}
		return fmt.Errorf("what was done with the letters of %s is unknown, PostgreSQL does not say: %w", t.name, err)
	}
	return nil
}

// note records what was done with letters.
func (s *Service) note(ctx context.Context, t topic, action, by, reason string, letters []*Letter, returns func(*Letter) int) error {
	if len(letters) == 0 {
		return nil
	}
	partitions, offsets, counts := make([]int32, len(letters)), make([]int64, len(letters)), make([]int32, len(letters))
	for i, l := range letters {
		partitions[i], offsets[i], counts[i] = l.Partition, l.Offset, int32(returns(l)) //nolint:gosec // a small count
	}
	_, err := s.Pool.Exec(ctx, `
		INSERT INTO vitrina.dead_letter_actions AS a (topic, topic_id, "partition", "offset", action, by, reason, returns)
		SELECT $1, $2, i.p, i.o, $3, $4, $5, i.n FROM unnest($6::integer[], $7::bigint[], $8::integer[]) AS i (p, o, n)
		ON CONFLICT (topic_id, "partition", "offset") DO UPDATE
		SET action = excluded.action, at = now(), by = excluded.by, reason = excluded.reason, returns = greatest(a.returns, excluded.returns)`,
		t.name, [16]byte(t.id), action, by, reason, partitions, offsets, counts)
	if err != nil {
		return fmt.Errorf("note %d letters of %s as %s in PostgreSQL: %w", len(letters), t.name, action, err)
	}
	return nil
}

// prune forgets acts on letters that the topic's retention has deleted. What was dropped stays: it is the audit.
func (s *Service) prune(ctx context.Context, t topic) error {
	for p, b := range t.bounds {
		if _, err := s.Pool.Exec(ctx, `DELETE FROM vitrina.dead_letter_actions WHERE topic_id = $1 AND "partition" = $2 AND "offset" < $3 AND action <> 'dropped'`,
			[16]byte(t.id), p, b.From); err != nil {
			return fmt.Errorf("forget acts on deleted letters of %s: %w", t.name, err)
		}
	}
	return nil
}

// Handled is how many of the letters between the given offsets of each partition were put back or dropped.
func Handled(ctx context.Context, q postgres.Querier, topic stream.TopicID, from, to []int64) (int64, error) {
	var handled int64
	err := q.QueryRow(ctx, `SELECT count(*) FROM unnest($2::bigint[], $3::bigint[]) WITH ORDINALITY AS i (f, t, p)
		JOIN vitrina.dead_letter_actions AS a ON a.topic_id = $1 AND a."partition" = i.p - 1 AND a."offset" >= i.f AND a."offset" < i.t
		WHERE a.action IN ('replayed', 'dropped')`, [16]byte(topic), from, to).Scan(&handled)
	if err != nil {
		return 0, fmt.Errorf("count the handled dead letters: %w", err)
	}
	return handled, nil
}

// BusyError says that somebody else works on the letters of a topic.
type BusyError struct{ Topic string }

func (e *BusyError) Error() string {
	return "another replay or drop of " + e.Topic + " is under way: wait for its end"
}

// lock keeps others from working on a topic's letters: two replays at once would put every record back twice.
func (s *Service) lock(ctx context.Context, name string) (unlock func(), err error) {
	conn, err := s.Pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL, which keeps what was done with dead letters: %w", err)
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // a hash never fails
	key := int32(h.Sum32())      //nolint:gosec // any number will do
	var got bool
	if err := conn.QueryRow(ctx, `SELECT pg_catalog.pg_try_advisory_lock(1986622068, $1)`, key).Scan(&got); err != nil {
		conn.Release()
		return nil, fmt.Errorf("lock the letters of %s in PostgreSQL: %w", name, err)
	}
	if !got {
		conn.Release()
		return nil, &BusyError{name}
	}
	return func() {
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if _, err := conn.Exec(bound, `SELECT pg_catalog.pg_advisory_unlock(1986622068, $1)`, key); err != nil {
			// A connection that ends takes its locks along.
			if err := conn.Conn().Close(bound); err != nil {
				s.Logger.LogAttrs(bound, slog.LevelWarn, "a connection could not be closed", slog.String("event", "dead-letter-unlock"), slog.Any("error", err))
			}
		}
		conn.Release()
	}, nil
}
