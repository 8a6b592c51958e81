package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// The last progress ran into the error: "looks at the topics and the groupthe group table …".
func TestAnOperationsResultSeparatesItsProgressFromItsError(t *testing.T) {
	for _, tc := range []struct{ message, fault, want string }{
		{"looks at the topics", "the group table has 3 partitions", "looks at the topics. the group table has 3 partitions\n"},
		{"", "the topic is gone", "  the topic is gone\n"},
		{"7 cards", "", "7 cards\n"},
	} {
		var out bytes.Buffer
		a := &app{process: process{stdout: &out}, globals: &globals{Output: "text"}}
		require.NoError(t, a.printOperation(postgres.Operation{Message: tc.message, Error: tc.fault}))
		require.Contains(t, out.String(), tc.want)
	}
}
