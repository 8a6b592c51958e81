package tablestore

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The world outside a worker is two files of lines. "writes" has every write just before it is set in the store
// ("<serial> <key> set|delete"), "changelog" the serials of those that reached the changelog, in order. A line goes out in one
// write(2), so a SIGKILL loses no line, at most the end of the last one.
const (
	writesFile    = "writes"
	changelogFile = "changelog"
	kills         = 25
)

// tight makes flushes, snapshots, journals and merges so frequent that every kill meets one.
func tight(dir string) Config {
	return Config{
		Dir: dir, FlushWrites: 300, FlushInterval: 7 * time.Millisecond, FilterSaveInterval: 11 * time.Millisecond, WriteBuffer: 64 << 10,
	}
}

type write struct {
	serial  int
	key     string
	deleted bool
}

func (w write) change() change {
	if w.deleted {
		return change{w.key, nil}
	}
	return change{w.key, []byte(fmt.Sprintf("%d-%s", w.serial, strings.Repeat("x", w.serial%90)))}
}

type world struct {
	writes    []write
	changelog []int // serials
}

func readWorld(dir string) (world, error) {
	var w world
	lines, err := wholeLines(filepath.Join(dir, writesFile))
	if err != nil {
		return w, err
	}
	for i, line := range lines {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[0] != strconv.Itoa(i) {
			return w, fmt.Errorf("%s, line %d: %q", writesFile, i, line)
		}
		w.writes = append(w.writes, write{i, fields[1], fields[2] == "delete"})
	}
	if lines, err = wholeLines(filepath.Join(dir, changelogFile)); err != nil {
		return w, err
	}
	for _, line := range lines {
		serial, err := strconv.Atoi(line)
		if err != nil {
			return w, err
		}
		w.changelog = append(w.changelog, serial)
	}
	return w, nil
}

// wholeLines cuts off an unfinished last line.
func wholeLines(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	end := bytes.LastIndexByte(data, '\n') + 1
	if end < len(data) {
		if err := os.Truncate(path, int64(end)); err != nil {
			return nil, err
		}
	}
	return strings.FieldsFunc(string(data[:end]), func(r rune) bool { return r == '\n' }), nil
}

func (w world) log() changelog {
	log := make(changelog, 0, len(w.changelog))
	for _, serial := range w.changelog {
		log = append(log, w.writes[serial].change())
	}
	return log
}

// childT lets the child use the harness: a failure ends it with a message.
type childT struct{}

func (childT) Helper() {}
func (childT) Errorf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}
func (childT) FailNow() { os.Exit(3) }
func (c childT) Fatalf(format string, args ...any) {
	c.Errorf(format, args...)
	c.FailNow()
}

// workUntilKilled is the child: it recovers, says so, and writes with acknowledgements a little behind, checking what it reads.
func workUntilKilled(dir string) error {
	w, err := readWorld(dir)
	if err != nil {
		return err
	}
	open := func(name string) (*os.File, error) {
		return os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	}
	writes, err := open(writesFile)
	if err != nil {
		return err
	}
	records, err := open(changelogFile)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(time.Now().UnixNano())))
	t := childT{}
	s := openStore(t, newTables(t, tight(filepath.Join(dir, "state"))))
	if err := recoverStore(t, s, w.log(), rng); err != nil {
		return err
	}
	known := mustContents(t, s)
	fmt.Println("recovered")
	go func() { // a worker does not outlive the test
		if _, err := io.Copy(io.Discard, os.Stdin); err == nil {
			os.Exit(4)
		}
	}()

	sent := make(chan write, 500)
	broken := make(chan error, 1)
	go func() { broken <- acknowledge(s, records, sent, int64(len(w.changelog))) }()
	deletes := rng.IntN(3) == 0 // they pin the offset: not in every life
	for serial := len(w.writes); ; serial++ {
		wr := write{serial: serial, key: fmt.Sprintf("key-%d", rng.IntN(4000)), deleted: deletes && rng.IntN(20) == 0}
		got, err := s.Get(wr.key)
		if err != nil {
			return err
		}
		if want, ok := known[wr.key]; ok != (got != nil) || want != string(got) {
			return fmt.Errorf("%s is %q (nil: %t), must be %q (%t)", wr.key, got, got == nil, want, ok)
		}
		op := "set"
		if wr.deleted {
			op = "delete"
		}
		if _, err := fmt.Fprintf(writes, "%d %s %s\n", serial, wr.key, op); err != nil {
			return err
		}
		if c := wr.change(); wr.deleted {
			err = s.Delete(wr.key)
			delete(known, wr.key)
		} else {
			err = s.Set(wr.key, c.value)
			known[wr.key] = string(c.value)
		}
		if err != nil {
			return err
		}
		select {
		case sent <- wr:
		case err := <-broken:
			return err
		}
	}
}

// acknowledge is the broker and Goka's promises.
func acknowledge(s *Store, records *os.File, sent <-chan write, offset int64) error {
	for wr := range sent {
		if _, err := fmt.Fprintf(records, "%d\n", wr.serial); err != nil {
			return err
		}
		if offset != 0 && !wr.deleted {
			if err := s.SetOffset(offset); err != nil {
				return err
			}
		}
		offset++
	}
	return nil
}

func TestKilledUnderLoad(t *testing.T) {
	dir := t.TempDir()
	exe, err := os.Executable()
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 2))
	scans, drops := 0, 0
	for i := range kills {
		killWorker(t, exe, dir, time.Duration(5+rng.IntN(150))*time.Millisecond, rng.IntN(6) == 0)
		dropped, scanned := verifyImage(t, dir, rng)
		if dropped {
			drops++
		}
		if scanned {
			scans++
		}
		if t.Failed() {
			t.Fatalf("after kill %d", i+1)
		}
	}
	w, err := readWorld(dir)
	require.NoError(t, err)
	t.Logf("%d kills, %d writes, %d in the changelog, %d directories dropped, %d filters scanned", kills, len(w.writes), len(w.changelog), drops, scans)
	require.Greater(t, len(w.changelog), kills*100, "the workers hardly worked")
}

// killWorker starts a worker and kills it some time after it has recovered, or during recovery.
func killWorker(t *testing.T, exe, dir string, after time.Duration, early bool) {
	t.Helper()
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	_, err := cmd.StdinPipe() // held open until the worker is dead
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(out)
	if !early {
		line, err := lines.ReadString('\n')
		require.NoError(t, err, "the worker said: %s", &complaints)
		require.Equal(t, "recovered\n", line)
	}
	timer := time.NewTimer(after)
	defer timer.Stop()
	<-timer.C
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() //nolint:errcheck // it was killed: an error is what must come
	require.Equal(t, -1, cmd.ProcessState.ExitCode(), "the worker ended by itself: %s", &complaints)
	require.Empty(t, complaints.String())
}

// verifyImage opens a copy of what the kill left: what it claims must be there, and after recovery it must equal the changelog but
// for writes that never reached it. The next worker goes on with the original.
func verifyImage(t *testing.T, dir string, rng *rand.Rand) (dropped, scanned bool) {
	t.Helper()
	w, err := readWorld(dir)
	require.NoError(t, err)
	log := w.log()
	state := t.TempDir()
	copyDir(t, filepath.Join(dir, "state", testTopic+".3"), filepath.Join(state, testTopic+".3"))
	out := &logBuffer{}
	tables, err := New(tight(state), out.logger(), nil)
	require.NoError(t, err)
	s := openStore(t, tables)
	defer func() { require.NoError(t, s.Close()) }()
	claimed, err := s.GetOffset(none)
	require.NoError(t, err)
	require.Less(t, claimed, int64(len(log)))
	checkClaim(t, w, mustContents(t, s), claimed)

	require.NoError(t, recoverStore(t, s, log, rng))
	got := mustContents(t, s)
	replayed := make(map[string]int) // key: offset of its last record
	for o, c := range log {
		replayed[c.key] = o
	}
	left := unsent(w)
	for key, want := range log.replay() {
		if got[key] == want {
			continue
		}
		value, ok := got[key]
		requireLeftover(t, w, left, key, value, ok, replayed, claimed)
	}
	for key, value := range got {
		if o, ok := replayed[key]; !ok || log[o].value == nil {
			requireLeftover(t, w, left, key, value, true, replayed, claimed)
		}
	}
	return out.count("table-store-dropped") > 0, out.count("table-store-dropped") == 0 && s.Stats().Scanned
}

// unsent returns the writes of each key that never reached the changelog.
func unsent(w world) map[string][]write {
	reached := make([]bool, len(w.writes))
	for _, serial := range w.changelog {
		reached[serial] = true
	}
	left := make(map[string][]write)
	for _, wr := range w.writes {
		if !reached[wr.serial] {
			left[wr.key] = append(left[wr.key], wr)
		}
	}
	return left
}

// requireLeftover: a recovered table may differ from the changelog in a key only by a write that is newer than the key's last
// record, never reached the changelog, and was not overwritten by recovery.
func requireLeftover(t *testing.T, w world, left map[string][]write, key, value string, present bool, replayed map[string]int, claimed int64) {
	t.Helper()
	newest := -1
	if o, ok := replayed[key]; ok {
		require.LessOrEqual(t, int64(o), claimed, "%s was read again at %d and must equal the changelog", key, o)
		newest = w.changelog[o]
	}
	for _, wr := range left[key] {
		if wr.serial > newest && (wr.deleted && !present || !wr.deleted && string(wr.change().value) == value) {
			return
		}
	}
	t.Fatalf("%s is %q (%t): neither the changelog's nor a write that never reached it", key, value, present)
}

// checkClaim: every write up to the claimed offset is there, or a newer one of its key. A key that has a record above the claim may
// be old: recovery read a compacted topic and did not come to that record yet.
func checkClaim(t *testing.T, w world, got map[string]string, claimed int64) {
	t.Helper()
	last := make(map[string]int) // key: serial of its last write the store claims
	for _, serial := range w.changelog[:claimed+1] {
		last[w.writes[serial].key] = serial
	}
	for _, serial := range w.changelog[claimed+1:] {
		delete(last, w.writes[serial].key)
	}
	deleted := make(map[string]bool) // keys that a newer write deleted
	for _, wr := range w.writes {
		if serial, ok := last[wr.key]; ok && wr.deleted && wr.serial >= serial {
			deleted[wr.key] = true
		}
	}
	for key, serial := range last {
		value, ok := got[key]
		if !ok {
			require.True(t, deleted[key], "claims %d and has nothing for %s", claimed, key)
			continue
		}
		number, _, _ := strings.Cut(value, "-")
		have, err := strconv.Atoi(number)
		require.NoError(t, err)
		require.GreaterOrEqual(t, have, serial, "claims %d and has an old value of %s", claimed, key)
	}
}
