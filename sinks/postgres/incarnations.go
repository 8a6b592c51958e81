package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Incarnation is what the state of a consumer group was made from.
type Incarnation struct {
	SourceTopicID uuid.UUID
	Partitions    int32
	Hasher        string
}

// ReadIncarnation returns what a group's state was made from; false before its first start.
func ReadIncarnation(ctx context.Context, q Querier, group string) (Incarnation, bool, error) {
	var i Incarnation
	err := q.QueryRow(ctx, `SELECT source_topic_id, partitions, hasher FROM vitrina.incarnations WHERE group_name = $1`, group).
		Scan(&i.SourceTopicID, &i.Partitions, &i.Hasher)
	if errors.Is(err, pgx.ErrNoRows) {
		return i, false, nil
	}
	if err != nil {
		return i, false, fmt.Errorf("reading what the state of group %s was made from: %w", group, err)
	}
	return i, true, nil
}

// AcceptIncarnation notes it where nothing is noted yet; an existing note stays.
func AcceptIncarnation(ctx context.Context, q Querier, group string, i Incarnation) error {
	_, err := q.Exec(ctx, `INSERT INTO vitrina.incarnations (group_name, source_topic_id, partitions, hasher) VALUES ($1, $2, $3, $4)
		ON CONFLICT (group_name) DO NOTHING`, group, i.SourceTopicID, i.Partitions, i.Hasher)
	if err != nil {
		return fmt.Errorf("noting what the state of group %s is made from: %w", group, err)
	}
	return nil
}

// ForgetIncarnation removes the note: the group's next start accepts the source as it then is. A rebuild calls it in the
// transaction that resets the projection.
func ForgetIncarnation(ctx context.Context, q Querier, group string) error {
	if _, err := q.Exec(ctx, `DELETE FROM vitrina.incarnations WHERE group_name = $1`, group); err != nil {
		return fmt.Errorf("forgetting what the state of group %s was made from: %w", group, err)
	}
	return nil
}
