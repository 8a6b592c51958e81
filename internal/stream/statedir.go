package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// stateDir is <state.dir>/<group>: the local store of one group's table, with a note of what it was made from and a lock. It
// can be lost at any time; the table topic holds the same.
type stateDir struct {
	path string
	lock *os.File
}

// Meta is what the local store of a group was made from, kept beside it in meta.json.
type Meta struct {
	Format        int     `json:"format"`
	Group         string  `json:"group"`
	TableTopic    string  `json:"table_topic"`
	TableTopicID  TopicID `json:"table_topic_id"`
	SourceTopic   string  `json:"source_topic"`
	SourceTopicID TopicID `json:"source_topic_id"`
	Epoch         int64   `json:"epoch"`
	Partitions    int32   `json:"partitions"`
	Hasher        Hasher  `json:"hasher"`
}

const metaFormat = 1

// openStateDir creates and locks the directory. Two processes that shared it would write into each other's store.
func openStateDir(dir, group string) (*stateDir, error) {
	path := filepath.Join(dir, filepath.Base(group))
	if err := os.MkdirAll(path, 0o750); err != nil {
		return nil, fmt.Errorf("create the state directory: %w; give a writable directory in state.dir", err)
	}
	name := filepath.Join(path, "lock")
	lock, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the state directory: %w; give a writable directory in state.dir", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, readErr := io.ReadAll(io.LimitReader(lock, 100))
		err := errors.Join(readErr, lock.Close())
		return nil, errors.Join(fmt.Errorf("state directory %s is in use by another instance (process %s): give each instance its own state.dir, or stop the other one",
			path, strings.TrimSpace(string(holder))), err)
	}
	s := &stateDir{path: path, lock: lock}
	if err := s.sign(); err != nil {
		return nil, errors.Join(fmt.Errorf("write the lock of the state directory: %w", err), s.close())
	}
	return s, nil
}

// sign writes this process's number into the lock, for the error that another one will report.
func (s *stateDir) sign() error {
	if err := s.lock.Truncate(0); err != nil {
		return err
	}
	_, err := s.lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func (s *stateDir) close() error { return s.lock.Close() } // drops the lock

// table is where the stores lie.
func (s *stateDir) table() string { return filepath.Join(s.path, "table") }

func (s *stateDir) metaFile() string { return filepath.Join(s.path, "meta.json") }

// prepare makes the directory fit for want: a store that was made from another table topic, another epoch, another hasher or
// another partition count is dropped, because it would be silently stale (design, section 3, fact 6).
func (s *stateDir) prepare(ctx context.Context, want Meta, log *slog.Logger) error {
	want.Format = metaFormat
	have, err := s.read()
	reason := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if entries, readErr := os.ReadDir(s.table()); readErr == nil && len(entries) > 0 {
			reason = "nothing says what it was made from"
		}
	case err != nil:
		reason = "meta.json cannot be read: " + err.Error()
	case have.Format != want.Format || have.Group != want.Group || have.TableTopic != want.TableTopic:
		reason = "it belongs to another version of the program or to another group"
	case have.TableTopicID != want.TableTopicID:
		reason = "the table topic was created anew"
	case have.Epoch != want.Epoch:
		reason = "the projection was rebuilt"
	case have.Hasher != want.Hasher || have.Partitions != want.Partitions:
		reason = "the hasher or the partition count changed"
	}
	if reason != "" {
		log.LogAttrs(ctx, slog.LevelWarn, "the local store is dropped and restored from the table topic",
			slog.String("event", "state-dir-wiped"), slog.String("dir", s.path), slog.String("reason", reason),
			slog.Int64("epoch", want.Epoch), slog.String("table_topic_id", want.TableTopicID.String()))
		// The store goes first: a crash before the note is written drops it once more.
		if err := os.RemoveAll(s.table()); err != nil {
			return fmt.Errorf("drop the outdated local store %s: %w", s.table(), err)
		}
	}
	if err == nil && reason == "" && have == want {
		return nil
	}
	return s.write(want)
}

func (s *stateDir) read() (Meta, error) {
	var m Meta
	b, err := os.ReadFile(s.metaFile())
	if err != nil {
		return m, err
	}
	err = json.Unmarshal(b, &m)
	return m, err
}

// write replaces meta.json in one step.
func (s *stateDir) write(m Meta) error {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("encode meta.json: %w", err)
	}
	temp := s.metaFile() + ".new"
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write meta.json of the state directory: %w", err)
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(temp, s.metaFile())
	}
	if err != nil {
		return fmt.Errorf("write meta.json of the state directory: %w", err)
	}
	return nil
}

// Accepted is what the state of a group was made from. It is kept in the database, because a local directory may be fresh.
type Accepted struct {
	SourceTopicID TopicID
	Partitions    int32
	Hasher        Hasher
}

// Incarnations remembers what the state of each group was made from. It is implemented over PostgreSQL.
type Incarnations interface {
	// Accepted returns what a group's state was made from, or false before its first start.
	Accepted(ctx context.Context, group string) (Accepted, bool, error)
	// Accept notes it where nothing is noted yet; an existing note stays. A rebuild replaces it by other means.
	Accept(ctx context.Context, group string, a Accepted) error
}

// SourceChangedError says that a group's state was made from another incarnation of its source, another partition count or
// another hasher: its marks and offsets would be taken for those of other records (design, E6).
type SourceChangedError struct {
	Group, Source, Problem, Mend string
}

func (e *SourceChangedError) Error() string {
	return fmt.Sprintf("group %s cannot go on with topic %s: %s. %s", e.Group, e.Source, e.Problem, e.Mend)
}

// accept compares the source with what the group's state was made from, and notes it at the group's first start.
func accept(ctx context.Context, store Incarnations, spec *Spec, now Accepted) error {
	then, known, err := store.Accepted(ctx, spec.Group)
	if err == nil && !known {
		if err = store.Accept(ctx, spec.Group, now); err == nil {
			then, known, err = store.Accepted(ctx, spec.Group) // another instance may have been faster
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("look up what the state of group %s was made from: %w", spec.Group, err)
	case !known:
		return fmt.Errorf("what the state of group %s is made from was noted and is gone", spec.Group)
	case then.SourceTopicID != now.SourceTopicID:
		return spec.changed(fmt.Sprintf("it was deleted and created again (id %s, before %s)", now.SourceTopicID, then.SourceTopicID))
	case then.Partitions != now.Partitions:
		return spec.changed(fmt.Sprintf("it has %d partitions, before %d", now.Partitions, then.Partitions))
	case then.Hasher != now.Hasher:
		// A rebuild keeps what an earlier hasher put elsewhere, so setting it back comes first.
		return &SourceChangedError{Group: spec.Group, Source: spec.Input,
			Problem: fmt.Sprintf("the hasher is set to %s, and the state was made with %s", now.Hasher, then.Hasher),
			Mend:    fmt.Sprintf("Set %s.hasher back to %s", spec.Name, then.Hasher)}
	}
	return nil
}
