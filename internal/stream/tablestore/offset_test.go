package tablestore

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

func TestOffsetRule(t *testing.T) {
	type step struct {
		recovered bool  // MarkRecovered
		writes    int   // own records sent
		set       int64 // SetOffset, when verdict is given
		verdict   verdict
		want      int64 // none: no offset
	}
	cases := []struct {
		name  string
		start offsetState
		steps []step
	}{
		{"recovery takes any higher offset, compaction leaves gaps", offsetState{}, []step{
			{set: 0, verdict: passed, want: 0}, {set: 7, verdict: passed, want: 7}, {set: 7, verdict: ignored, want: 7}, {set: 3, verdict: ignored, want: 7},
		}},
		{"after recovery only the next one passes", offsetState{value: 7, known: true}, []step{
			{recovered: true, writes: 3, set: 8, verdict: passed, want: 8}, {set: 9, verdict: passed, want: 9},
			{set: 11, verdict: gap, want: 9}, {set: 12, verdict: gap, want: 9},
		}},
		{"an acknowledgement that was only late closes its gap", offsetState{value: 7, known: true}, []step{
			{recovered: true, writes: 3, set: 9, verdict: gap, want: 7}, {set: 8, verdict: passed, want: 8}, {set: 9, verdict: passed, want: 9},
		}},
		{"an empty topic: Goka never reports offset 0", offsetState{}, []step{
			{recovered: true, writes: 2, set: 1, verdict: passed, want: 1}, {writes: 1, set: 2, verdict: passed, want: 2},
		}},
		{"an empty topic in which somebody else wrote first", offsetState{}, []step{
			{recovered: true, writes: 1, set: 1, verdict: regressed, want: none}, {writes: 5, set: 2, verdict: gap, want: none},
		}},
		{"somebody else wrote first, seen only once the pipeline was empty", offsetState{}, []step{
			{recovered: true, writes: 2, set: 1, verdict: passed, want: 1}, {set: 2, verdict: regressed, want: none}, {writes: 9, set: 3, verdict: gap, want: none},
		}},
		{"an empty topic, then another writer: what was claimed stays", offsetState{}, []step{
			{recovered: true, writes: 3, set: 1, verdict: passed, want: 1}, {set: 3, verdict: gap, want: 1},
		}},
		{"a topic trimmed to nothing: where it begins is unknown", offsetState{}, []step{
			{recovered: true, writes: 9, set: 500, verdict: gap, want: none}, {set: 501, verdict: gap, want: none},
		}},
		{"recovery had nothing to read: the offset on disk is the base", offsetState{value: 99, known: true}, []step{
			{recovered: true, writes: 1, set: 100, verdict: passed, want: 100},
		}},
		{"the log was cut below the offset", offsetState{value: 99, known: true}, []step{
			{recovered: true, writes: 2, set: 90, verdict: regressed, want: none}, {set: 91, verdict: gap, want: none}, {set: 1, verdict: gap, want: none},
		}},
		{"a view follows whatever comes", offsetState{follow: true, value: 7, known: true}, []step{
			{recovered: true, set: 9, verdict: passed, want: 9}, {set: 40, verdict: passed, want: 40}, {set: 39, verdict: ignored, want: 40},
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o := c.start
			for i, st := range c.steps {
				if st.recovered {
					o.markRecovered()
					o.markRecovered() // a second call changes nothing
				}
				for range st.writes {
					o.wrote()
				}
				require.Equal(t, st.verdict, o.set(st.set), "step %d", i)
				got := none
				if o.known {
					got = o.value
				}
				require.Equal(t, st.want, got, "step %d", i)
				require.Equal(t, st.verdict == gap || st.verdict == regressed, o.pinned, "step %d", i)
			}
		})
	}
}

// twoOwners plays design E2: A stalls with one write under way, B takes the partition over and writes, A's write lands and is
// acknowledged to A's old store, A gets the partition back. It returns which of B's marks A does not know: each of them
// would be counted twice.
func twoOwners(t *testing.T, cfg func(dir string) Config) (missing []string, pinned bool, offset int64) {
	t.Helper()
	const before, written = 100, 67
	dir := t.TempDir()
	dirA, dirB := cfg(filepath.Join(dir, "a")), cfg(filepath.Join(dir, "b"))

	var log changelog
	a := openStore(t, newTables(t, dirA))
	for i := range before {
		log = append(log, change{fmt.Sprintf("before-%d", i), []byte("mark")})
	}
	require.NoError(t, recoverStore(t, a, log, nil))
	// A writes one mark. Its record waits in the producer while A stalls.
	require.NoError(t, a.Set("zombie", []byte("mark")))

	b := openStore(t, newTables(t, dirB))
	require.NoError(t, recoverStore(t, b, log, nil))
	for i := range written {
		c := change{fmt.Sprintf("after-%d", i), []byte("mark")}
		require.NoError(t, b.Set(c.key, c.value))
		log = append(log, c)
		require.NoError(t, b.SetOffset(int64(len(log)-1)))
	}
	require.Equal(t, int64(before+written-1), b.Stats().Offset)

	// A wakes up: the record reaches the changelog and its acknowledgement A's store, then A notices that it lost the partition.
	log = append(log, change{"zombie", []byte("mark")})
	require.NoError(t, a.SetOffset(int64(len(log)-1)))
	st := a.Stats()
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())

	a = openStore(t, newTables(t, dirA))
	require.NoError(t, recoverStore(t, a, log, nil))
	for i := range written {
		key := fmt.Sprintf("after-%d", i)
		has, err := a.Has(key)
		require.NoError(t, err)
		if !has {
			missing = append(missing, key)
		}
	}
	require.NoError(t, a.Close())
	return missing, st.Pinned, st.Offset
}

func TestTwoOwnersInTurn(t *testing.T) {
	missing, pinned, offset := twoOwners(t, idle)
	require.Empty(t, missing, "marks of the other owner that are not read again: each is a double count")
	require.True(t, pinned)
	require.Equal(t, int64(99), offset)
}

// Without the rule the same play loses every mark of the other owner, so the test above can fail.
func TestTwoOwnersNeedTheRule(t *testing.T) {
	missing, _, _ := twoOwners(t, func(dir string) Config {
		cfg := idle(dir)
		cfg.Follow = true
		return cfg
	})
	require.Len(t, missing, 67)
}

// The other way round: the new owner sees a record of the old one between its own.
func TestNewOwnerIsPinnedByAStraggler(t *testing.T) {
	out, reg := &logBuffer{}, prometheus.NewRegistry()
	tables, err := New(idle(t.TempDir()), out.logger(), reg)
	require.NoError(t, err)
	s := openStore(t, tables)
	log := changelog{{"x", []byte("1")}}
	require.NoError(t, recoverStore(t, s, log, nil))
	set := func(key string) {
		require.NoError(t, s.Set(key, []byte("mine")))
		log = append(log, change{key, []byte("mine")})
		require.NoError(t, s.SetOffset(int64(len(log)-1)))
	}
	set("a")
	require.NoError(t, s.ask(taskFlush))
	require.Zero(t, testutil.ToFloat64(s.metrics.pinned))
	log = append(log, change{"straggler", []byte("theirs")})
	set("b")
	set("c")
	require.Equal(t, 1, int(testutil.ToFloat64(s.metrics.pinned)))
	require.Equal(t, 1, out.count("table-offset-pinned"), "told once, not for every record")
	require.Equal(t, int64(1), s.Stats().Offset)
	require.NoError(t, s.Close())

	s = openStore(t, tables)
	require.Equal(t, int64(1), s.Stats().Offset)
	require.NoError(t, recoverStore(t, s, log, nil))
	require.Equal(t, log.replay(), mustContents(t, s))
	require.NoError(t, s.Close())
}

// A changelog that lost its end makes the claimed offset worthless: the next start reads everything.
func TestOffsetIsForgottenWhenTheChangelogWasCut(t *testing.T) {
	out := &logBuffer{}
	tables, err := New(idle(t.TempDir()), out.logger(), nil)
	require.NoError(t, err)
	s := openStore(t, tables)
	var log changelog
	for i := range 50 {
		log = append(log, change{fmt.Sprint(i), []byte("old")})
	}
	require.NoError(t, recoverStore(t, s, log, nil))
	require.NoError(t, s.Close())

	// An unclean election loses the last ten records; another writer fills five of their places, then ours come.
	log = log[:40]
	s = openStore(t, tables)
	require.Equal(t, int64(49), s.Stats().Offset)
	require.NoError(t, s.MarkRecovered()) // Goka: local offset is higher than the partition's
	for i := range 20 {
		c := change{fmt.Sprint("new-", i), []byte("new")}
		if i >= 5 {
			require.NoError(t, s.Set(c.key, c.value))
		}
		log = append(log, c)
		if i >= 5 {
			require.NoError(t, s.SetOffset(int64(len(log)-1)))
		}
	}
	require.Equal(t, none, s.Stats().Offset)
	require.Equal(t, 1, out.count("table-offset-regressed"))
	require.NoError(t, s.Close())

	s = openStore(t, tables)
	require.Equal(t, none, s.Stats().Offset)
	require.NoError(t, recoverStore(t, s, log, nil))
	got := mustContents(t, s)
	for key, want := range log.replay() {
		require.Equal(t, want, got[key], key)
	}
	require.NoError(t, s.Close())
}

// The offset never runs ahead of the values: whatever is flushed when, the directory holds every write its offset stands for.
func TestFlushedOffsetNeverLeadsItsValues(t *testing.T) {
	cfg := idle(t.TempDir())
	cfg.FlushWrites = 7 // flushes begin at odd moments, in the background
	s := open(t, cfg)
	require.NoError(t, s.MarkRecovered())
	for o := range int64(2000) {
		require.NoError(t, s.Set(fmt.Sprintf("%d", o%50), []byte(fmt.Sprint(o))))
		if o == 0 {
			continue
		}
		require.NoError(t, s.SetOffset(o))
		if o%100 != 0 {
			continue
		}
		image := filepath.Join(t.TempDir(), testTopic+".3")
		copyDir(t, s.dir, image)
		c := openStore(t, newTables(t, idle(filepath.Dir(image))))
		claimed, got := c.Stats().Offset, mustContents(t, c)
		for p := max(0, claimed-49); p <= claimed; p++ {
			value, ok := got[fmt.Sprint(p%50)]
			require.True(t, ok, "claims %d without record %d", claimed, p)
			var at int64
			_, err := fmt.Sscan(value, &at)
			require.NoError(t, err)
			require.GreaterOrEqual(t, at, p, "claims %d, key %d", claimed, p%50)
		}
		require.NoError(t, c.Close())
	}
}
