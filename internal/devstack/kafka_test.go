package devstack_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
)

func TestApacheKafkaDoesWhatVitrinaNeedsAndKeepsDataAcrossCrashAndRestart(t *testing.T) {
	server := devtest.KafkaServer(t)
	brokers := server.Brokers()
	exerciseBroker(t, brokers)

	admin := kadm.NewClient(kafkaClient(t, brokers))
	_, err := admin.CreateTopic(t.Context(), 1, 1, nil, "kept")
	require.NoError(t, err)
	produce(t, brokers, "kept", "a", "b")
	require.Equal(t, []string{"a", "b"}, consume(t, brokers, "kept-group", "kept", 2))

	require.NoError(t, server.Kill())
	require.NoError(t, server.Restart(t.Context()))
	require.Equal(t, brokers, server.Brokers())
	produce(t, brokers, "kept", "c")
	require.Equal(t, []string{"c"}, consume(t, brokers, "kept-group", "kept", 1), "the commit survived the crash")
	require.NoError(t, server.Restart(t.Context()))
	require.Equal(t, []string{"a", "b", "c"}, consume(t, brokers, "other-group", "kept", 3))
}
