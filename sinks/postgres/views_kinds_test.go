package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/processors/popularity"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// The kinds are converted by number; this package cannot import the processor's.
func TestMarkKindsAreThoseOfTheProcessor(t *testing.T) {
	require.EqualValues(t, popularity.MarkNone, postgres.MarkNone)
	require.EqualValues(t, popularity.MarkOwn, postgres.MarkOwn)
	require.EqualValues(t, popularity.MarkForeign, postgres.MarkForeign)
	require.EqualValues(t, popularity.MarkEarlier, postgres.MarkEarlier)
}
