package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
)

// A database that was down was reported as up to date, on standard output, beside the error.
func TestMigrateOfADatabaseThatIsAwaySaysNothingIsUpToDate(t *testing.T) {
	environ := []string{"VITRINA_POSTGRES_DSN=postgres://a:b@127.0.0.1:1/x?connect_timeout=1", "VITRINA_ROLES=popularity"}
	for _, args := range [][]string{{"migrate", "up"}, {"migrate", "up", "--only", "postgres"}, {"migrate", "status"}} {
		code, out, errs := runProgram(t, environ, args...)
		require.Equal(t, 1, code, args)
		require.Empty(t, out, args)
		require.Contains(t, errs, "PostgreSQL", args)
	}
}

// Whoever ran the boosts and the views alone could not migrate without an error about a setting that he does not need, which was called
// unreadable and not missing.
func TestMigrateWithoutClickHouse(t *testing.T) {
	environ := []string{"VITRINA_POSTGRES_DSN=" + devtest.Postgres(t)}
	views := append([]string{"VITRINA_ROLES=promotion,popularity,api"}, environ...)
	const leftOut, needed, unset = "ClickHouse is left out: clickhouse.dsn is not set", "role price needs it", "clickhouse.dsn is not set: set VITRINA_CLICKHOUSE_DSN"
	for _, step := range []struct {
		environ []string
		command string
		only    string
		code    int
		out     string
		errs    string
	}{
		{views, "status", "both", 1, "false", leftOut}, // PostgreSQL misses everything
		{views, "up", "both", 0, "true", leftOut},
		{views, "up", "both", 0, "nothing to do", leftOut},
		{views, "status", "both", 0, "true", leftOut},
		{views, "status", "postgres", 0, "true", ""},
		{views, "up", "clickhouse", 1, "", unset},
		{views, "status", "clickhouse", 1, "", unset},
		{environ, "status", "both", 1, "true", needed}, // and says what PostgreSQL has
		{environ, "up", "both", 1, "", needed},
		{environ, "up", "both", 1, "", "--only postgres"},
		{environ, "up", "postgres", 0, "nothing to do", ""},
	} {
		code, out, errs := runProgram(t, step.environ, "migrate", step.command, "--only", step.only)
		require.Equal(t, step.code, code, "%+v\n%s\n%s", step, out, errs)
		for what, text := range map[string][2]string{"stdout": {step.out, out}, "stderr": {step.errs, errs}} {
			if text[0] == "" {
				require.Empty(t, text[1], "%s of %+v", what, step)
			}
			require.Contains(t, text[1], text[0], "%s of %+v", what, step)
		}
	}
}
