package postgres

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

const (
	versionTable = "vitrina.schema_migrations"
	// migrationLock keeps instances that migrate at the same time apart ("vitrina" in ASCII).
	migrationLock = 0x76697472696e61
)

// Migration is one step of the schema.
type Migration struct {
	Version   int64     `json:"version"`
	Name      string    `json:"name"`
	Applied   bool      `json:"applied"`
	AppliedAt time.Time `json:"appliedAt,omitzero"`
}

// Migrate brings schema vitrina to the newest version and creates the catalog's card tables where they are missing. It
// is safe to repeat and to run from several instances at once: they take turns. It returns the steps applied now.
func Migrate(ctx context.Context, db *sql.DB) ([]Migration, error) {
	if err := createSchema(ctx, db); err != nil {
		return nil, err
	}
	provider, err := newProvider(db)
	if err != nil {
		return nil, err
	}
	results, err := provider.Up(ctx)
	applied := make([]Migration, 0, len(results))
	for _, r := range results {
		applied = append(applied, Migration{Version: r.Source.Version, Name: path.Base(r.Source.Path), Applied: true})
	}
	if err != nil {
		return applied, explainMigration(err)
	}
	return applied, installAfterMigration(ctx, db)
}

// MigrationStatus lists every step known to this binary with what the database has of it. It changes nothing: on a
// database that was never migrated all are pending.
func MigrationStatus(ctx context.Context, db *sql.DB) ([]Migration, error) {
	var exists bool
	if err := db.QueryRowContext(ctx, `SELECT pg_catalog.to_regclass($1) IS NOT NULL`, versionTable).Scan(&exists); err != nil {
		return nil, fmt.Errorf("looking for %s: %w", versionTable, err)
	}
	provider, err := newProvider(db)
	if err != nil {
		return nil, err
	}
	if !exists {
		sources := provider.ListSources()
		pending := make([]Migration, 0, len(sources))
		for _, s := range sources {
			pending = append(pending, Migration{Version: s.Version, Name: path.Base(s.Path)})
		}
		return pending, nil
	}
	statuses, err := provider.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", versionTable, err)
	}
	list := make([]Migration, 0, len(statuses))
	for _, s := range statuses {
		list = append(list, Migration{Version: s.Source.Version, Name: path.Base(s.Source.Path), Applied: s.State == goose.StateApplied, AppliedAt: s.AppliedAt})
	}
	return list, nil
}

func newProvider(db *sql.DB) (*goose.Provider, error) {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return nil, fmt.Errorf("reading the embedded migrations: %w", err)
	}
	// The goose locker polls: every second, for five minutes at most.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(migrationLock), lock.WithLockTimeout(1, 300))
	if err != nil {
		return nil, fmt.Errorf("making the migration lock: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithTableName(versionTable),
		goose.WithSessionLocker(locker),
		// Number ranges belong to consumers (001xx promotion, 002xx popularity): a new step of one is not out of order
		// because another consumer's higher number was there first.
		goose.WithAllowOutofOrder(true),
		goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("reading the migrations: %w", err)
	}
	return provider, nil
}

// createSchema makes the schema that goose's own table lives in. CREATE SCHEMA IF NOT EXISTS alone fails for a role that
// may not create schemas even where it exists, and races with itself.
func createSchema(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("connecting to PostgreSQL: %w", err)
	}
	_, err = tx.ExecContext(ctx, fmt.Sprintf(`
		DO $$
		BEGIN
			PERFORM pg_catalog.pg_advisory_xact_lock(%d);
			IF pg_catalog.to_regnamespace('vitrina') IS NULL THEN
				CREATE SCHEMA vitrina;
			END IF;
		END
		$$`, migrationLock+1))
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("creating schema vitrina (the role needs CREATE on the database, or an owner creates the schema for it): %w", err), rollback(tx))
	}
	return nil
}

func rollback(tx *sql.Tx) error {
	if err := tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("rolling back: %w", err)
	}
	return nil
}

func explainMigration(err error) error {
	var partial *goose.PartialError
	if errors.As(err, &partial) && partial.Failed != nil {
		return fmt.Errorf("migration %s failed, nothing of it was kept, the ones before it are applied; mend the cause and run `vitrina migrate up` again: %s: %w",
			path.Base(partial.Failed.Source.Path), Explain(partial.Err), err)
	}
	return fmt.Errorf("migrating PostgreSQL: %w", err)
}
