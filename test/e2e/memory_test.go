package e2e

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/test/harness"
	"github.com/pin-marketplace/vitrina/test/model"
)

// While PostgreSQL is away under views of 50 KB, memory stays bounded in bytes, no offset moves, nothing is dead-lettered; then all are
// counted. Bounded in records alone, an instance took all of them in. VITRINA_OUTAGE_SECONDS=120 and VITRINA_OUTAGE_VIEWS=20000 are the
// outage that the issue names.
func TestMemoryStaysBoundedWhilePostgreSQLIsAway(t *testing.T) {
	seconds, views := sized(t, "VITRINA_OUTAGE_SECONDS", 5), sized(t, "VITRINA_OUTAGE_VIEWS", 9_000)
	s := harness.Start(t)
	i := s.Instance("one", []string{"--roles", "popularity"}, "GOGC=20")
	i.WaitReady()
	o := generate.Defaults()
	o.Seed, o.Start, o.Span = 63, time.Now().UTC().Add(-time.Hour).Truncate(time.Second), time.Hour
	o.Views, o.Purchases, o.Prices, o.Projects, o.Objects, o.LateCards, o.WrongKeys, o.Malformed = views, 0, 0, 20, 2_000, 0, 0, 0
	m := model.New(time.Now())
	writer, err := generate.NewKafkaWriter(s.KgoOpts(), "crc32", o.Seed)
	require.NoError(t, err)
	defer writer.Close()
	padding := bytes.Repeat([]byte("x"), 50_000)
	records, sent := 0, 0
	send := func(which func(*generate.Item) bool) {
		t.Helper()
		items := func(yield func(generate.Item, error) bool) {
			for item := range generate.Items(o) {
				if which(&item) && !yield(item, nil) {
					return
				}
			}
		}
		_, err := generate.Send(t.Context(), items, generate.Destination{
			Records: writer, Cards: generate.PostgresCards{DB: s.Pool}, Observe: func(item generate.Item) { item.Give(m) },
		})
		require.NoError(t, err)
	}
	send(func(item *generate.Item) bool { return item.Card != nil })
	require.NoError(t, s.Postgres.Kill())
	send(func(item *generate.Item) bool {
		if item.Record == nil {
			return false
		}
		item.Record = padded(item.Record, padding)
		records++
		sent += item.Record.Size()
		return true
	})

	worst := 0.0
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); <-time.After(time.Second) { // the outage has a length
		memory, found := i.Metric("process_resident_memory_bytes")
		require.True(t, found)
		worst = max(worst, memory)
	}
	t.Logf("worst resident memory during %d s without PostgreSQL under %d views of %d MB: %.0f MB", seconds, records, sent/1e6, worst/1e6)
	require.Less(t, worst, 380e6, "of %d MB of views", sent/1e6)
	const group = "pin-catalog-popularity"
	lags, err := s.Admin().Lag(t.Context(), group)
	require.NoError(t, err)
	require.EqualValues(t, records, lags[group].Lag.Total(), "no offset moves")
	dead, _ := i.Metric("catalog_popularity_dlq_total")
	require.Zero(t, dead)
	require.NoError(t, s.Postgres.Restart(t.Context()))
	s.WaitEqual(3*time.Minute, m.Expected())
	require.Empty(t, m.Expected().DeadLetters)
}

// padded adds a field that nobody knows.
func padded(rec *record.Record, padding []byte) *record.Record {
	large := *rec
	large.Value = fmt.Appendf(nil, `%s,"Padding":"%s"}`, bytes.TrimSuffix(bytes.TrimSpace(rec.Value), []byte("}")), padding)
	return &large
}
