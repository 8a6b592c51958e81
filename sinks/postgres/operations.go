package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// PriceHistory is the projection row that holds the price role while a replay moves its group's offsets. Price facts have no
// epoch: repeated rows collapse in ClickHouse.
const PriceHistory = "price-history"

// States of an operation.
const (
	OperationPending   = "pending"
	OperationRunning   = "running"
	OperationSucceeded = "succeeded"
	OperationFailed    = "failed"
)

// Operation is one row of vitrina.operations: a rebuild or a replay, and how far it has come.
type Operation struct {
	ID          uuid.UUID
	Kind        string // rebuild or replay
	Projection  string
	Source      string          // what it works from
	Request     json.RawMessage // further parameters
	State       string
	Step        string          // what is done next
	Data        json.RawMessage // what earlier steps have noted
	Done, Total int64           // of the present step; 0 of 0 where there is nothing to count
	Message     string          // what it is doing or waiting for, for a person
	Error       string
	RequestedBy string
	RequestedAt time.Time
	StartedAt   *time.Time
	FinishedAt  *time.Time
	LeaseHolder string // the process that works on it
	Leased      bool   // its lease has not run out
}

// Active says whether the operation has not ended.
func (o *Operation) Active() bool { return o.State == OperationPending || o.State == OperationRunning }

// ErrNoOperation says that there is no operation with that id.
var ErrNoOperation = errors.New("no such operation")

// ErrLeaseLost says that another process works on the operation now, or that it has moved on or ended.
var ErrLeaseLost = errors.New("the lease of the operation is lost: another process works on it, or it has ended")

const operationColumns = `id, kind, projection, source, request, state, step, data, done, total, message, error, requested_by,
	requested_at, started_at, finished_at, lease_holder, lease_until > clock_timestamp()`

func scanOperation(row pgx.Row) (Operation, error) {
	var o Operation
	var id [16]byte
	err := row.Scan(&id, &o.Kind, &o.Projection, &o.Source, &o.Request, &o.State, &o.Step, &o.Data, &o.Done, &o.Total, &o.Message, &o.Error,
		&o.RequestedBy, &o.RequestedAt, &o.StartedAt, &o.FinishedAt, &o.LeaseHolder, &o.Leased)
	o.ID = id
	return o, err
}

// RequestOperation makes a new operation from ID, Kind, Projection, Source, Request and RequestedBy, or returns the one that is
// active for the projection; made says which.
func RequestOperation(ctx context.Context, q Querier, o Operation) (got Operation, made bool, err error) {
	if o.Request == nil {
		o.Request = json.RawMessage(`{}`)
	}
	for {
		got, err = scanOperation(q.QueryRow(ctx, `
			INSERT INTO vitrina.operations (id, kind, projection, source, request, requested_by, message) VALUES ($1, $2, $3, $4, $5, $6, 'waits for a process to take it')
			ON CONFLICT (projection) WHERE state IN ('pending', 'running') DO NOTHING RETURNING `+operationColumns,
			[16]byte(o.ID), o.Kind, o.Projection, o.Source, o.Request, o.RequestedBy))
		if err == nil {
			return got, true, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return got, false, fmt.Errorf("recording the operation: %w", err)
		}
		got, err = scanOperation(q.QueryRow(ctx, `SELECT `+operationColumns+` FROM vitrina.operations WHERE projection = $1 AND state IN ('pending', 'running')`, o.Projection))
		if err == nil {
			return got, false, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) { // none: it has ended between the two statements
			return got, false, fmt.Errorf("reading the operation of projection %s: %w", o.Projection, err)
		}
	}
}

// ReadOperation returns an operation, or ErrNoOperation.
func ReadOperation(ctx context.Context, q Querier, id uuid.UUID) (Operation, error) {
	o, err := scanOperation(q.QueryRow(ctx, `SELECT `+operationColumns+` FROM vitrina.operations WHERE id = $1`, [16]byte(id)))
	if errors.Is(err, pgx.ErrNoRows) {
		return o, fmt.Errorf("%s: %w", id, ErrNoOperation)
	}
	if err != nil {
		return o, fmt.Errorf("reading operation %s: %w", id, err)
	}
	return o, nil
}

// ListOperations returns the newest operations, newest first.
func ListOperations(ctx context.Context, q Querier, limit int) ([]Operation, error) {
	rows, err := q.Query(ctx, `SELECT `+operationColumns+` FROM vitrina.operations ORDER BY requested_at DESC, id LIMIT $1`, limit)
	if err != nil {
		return nil, fmt.Errorf("listing the operations: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Operation, error) { return scanOperation(row) })
	if err != nil {
		return nil, fmt.Errorf("listing the operations: %w", err)
	}
	return list, nil
}

// TakeOperation takes the lease of an active operation that nobody holds, of id only unless it is uuid.Nil; false when there is none.
// A holder is one run of one process: its name must never come again.
func TakeOperation(ctx context.Context, q Querier, holder string, lease time.Duration, id uuid.UUID) (Operation, bool, error) {
	o, err := scanOperation(q.QueryRow(ctx, `
		UPDATE vitrina.operations SET state = 'running', started_at = coalesce(started_at, clock_timestamp()),
			lease_holder = $1, lease_until = clock_timestamp() + $2::interval
		WHERE id = (
			SELECT o.id FROM vitrina.operations o
			WHERE o.state IN ('pending', 'running') AND o.lease_until <= clock_timestamp() AND ($3 OR o.id = $4)
			ORDER BY o.requested_at LIMIT 1 FOR UPDATE SKIP LOCKED)
		RETURNING `+operationColumns, holder, lease, id == uuid.Nil, [16]byte(id)))
	if errors.Is(err, pgx.ErrNoRows) {
		return o, false, nil
	}
	if err != nil {
		return o, false, fmt.Errorf("looking for an operation to work on: %w", err)
	}
	return o, true, nil
}

// RenewLease keeps the lease and shows progress; ErrLeaseLost when the holder does not have it any more.
func RenewLease(ctx context.Context, q Querier, o *Operation, holder string, lease time.Duration) error {
	return o.update(ctx, q, `UPDATE vitrina.operations SET lease_until = clock_timestamp() + $3::interval, done = $4, total = $5, message = $6, error = $7
		WHERE id = $1 AND lease_holder = $2 AND state = 'running'`, holder, lease, o.Done, o.Total, o.Message, o.Error)
}

// AdvanceOperation records that a step is done: o.Step becomes next, o.Data is stored. Call it in the step's own transaction
// where the step has one. ErrLeaseLost when the holder does not have the lease any more, or the step was recorded before.
func AdvanceOperation(ctx context.Context, q Querier, o *Operation, holder, next string) error {
	return o.update(ctx, q, `UPDATE vitrina.operations SET step = $4, data = $5, done = 0, total = 0, message = $6, error = ''
		WHERE id = $1 AND lease_holder = $2 AND state = 'running' AND step = $3`, holder, o.Step, next, o.Data, o.Message)
}

// FinishOperation ends the operation and its lease; fault is empty for success.
func FinishOperation(ctx context.Context, q Querier, o *Operation, holder, fault string) error {
	state := OperationSucceeded
	if fault != "" {
		state = OperationFailed
	}
	return o.update(ctx, q, `UPDATE vitrina.operations SET state = $4, error = $5, data = $6, message = $7, finished_at = clock_timestamp(), lease_holder = '', lease_until = '-infinity'
		WHERE id = $1 AND lease_holder = $2 AND state = 'running' AND step = $3`, holder, o.Step, state, fault, o.Data, o.Message)
}

// ReleaseLease lets others go on at once; nothing happens when the holder does not have the lease.
func ReleaseLease(ctx context.Context, q Querier, o *Operation, holder string) error {
	if _, err := q.Exec(ctx, `UPDATE vitrina.operations SET lease_holder = '', lease_until = '-infinity' WHERE id = $1 AND lease_holder = $2`, [16]byte(o.ID), holder); err != nil {
		return fmt.Errorf("releasing the lease of operation %s: %w", o.ID, err)
	}
	return nil
}

func (o *Operation) update(ctx context.Context, q Querier, sql, holder string, args ...any) error {
	tag, err := q.Exec(ctx, sql, append([]any{[16]byte(o.ID), holder}, args...)...)
	if err != nil {
		return fmt.Errorf("recording operation %s: %w", o.ID, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("operation %s, step %s: %w", o.ID, o.Step, ErrLeaseLost)
	}
	return nil
}

// CloseProjection makes the instances leave the projection's group; its epoch stays. Readers go on.
func CloseProjection(ctx context.Context, q Querier, name, reason string) error {
	tag, err := q.Exec(ctx, `UPDATE vitrina.projections SET state = 'closed', note = $2, changed_at = clock_timestamp() WHERE name = $1`, name, reason)
	if err != nil {
		return fmt.Errorf("closing projection %s: %w", name, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("projection %q: %w", name, ErrNoProjection)
	}
	return nil
}

// LockProjection reads a projection's row FOR UPDATE: until the transaction ends nobody writes the projection or changes the row.
func LockProjection(ctx context.Context, tx pgx.Tx, name string) (Projection, error) {
	return scanProjection(name, tx.QueryRow(ctx, `SELECT epoch, state = 'open' FROM vitrina.projections WHERE name = $1 FOR UPDATE`, name))
}

// ReplaceIncarnation makes a group accept its source as it is now and keep the hasher with which its table was made, for rebuilds
// that keep the table. Without a note nothing happens: the group's next start makes one.
func ReplaceIncarnation(ctx context.Context, q Querier, group string, source uuid.UUID, partitions int32) error {
	_, err := q.Exec(ctx, `UPDATE vitrina.incarnations SET source_topic_id = $2, partitions = $3, accepted_at = clock_timestamp()
		WHERE group_name = $1 AND (source_topic_id, partitions) IS DISTINCT FROM ($2, $3)`, group, source, partitions)
	if err != nil {
		return fmt.Errorf("noting what the state of group %s is made from: %w", group, err)
	}
	return nil
}

// PurchaseVersions gives the version of every purchase of the replica to each.
func PurchaseVersions(ctx context.Context, q Querier, each func(purchase uuid.UUID, version int64)) error {
	rows, err := q.Query(ctx, `SELECT purchase_id, version FROM vitrina.purchases`)
	if err != nil {
		return fmt.Errorf("reading the purchases of the replica: %w", err)
	}
	var id [16]byte
	var version int64
	if _, err := pgx.ForEachRow(rows, []any{&id, &version}, func() error {
		each(id, version)
		return nil
	}); err != nil {
		return fmt.Errorf("reading the purchases of the replica: %w", err)
	}
	return nil
}
