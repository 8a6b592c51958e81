package backfill

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// checkpoint says how far the rows of one content are in one target. It is written after the insert is acknowledged and
// after the rejected rows are reported, so a run that dies in between does a chunk again, which readers do not see.
type checkpoint struct {
	File         string `json:"file"`
	SHA256       string `json:"sha256"`
	Target       string `json:"target"`
	Rows         int64  `json:"rows"`
	Written      int64  `json:"written"`
	Rejected     int64  `json:"rejected"`
	RejectsBytes int64  `json:"rejectsBytes"`
	Done         bool   `json:"done"`

	path string
}

// loadCheckpoint returns the one of a former run, or a new one.
func loadCheckpoint(path, sum, target string, again bool) (*checkpoint, error) {
	fresh := &checkpoint{SHA256: sum, Target: target, path: path}
	if again {
		return fresh, nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fresh, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the checkpoint: %w", err)
	}
	c := &checkpoint{path: path}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("the checkpoint %s cannot be read (%w): delete it to load the file from its beginning, which is safe", path, err)
	}
	if c.SHA256 != sum || c.Target != target {
		return fresh, nil
	}
	return c, nil
}

// save replaces the checkpoint in one step: a crash leaves the old or the new one.
func (c *checkpoint) save() error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	next := c.path + ".new"
	if err := writeSynced(next, b); err != nil {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	if err := os.Rename(next, c.path); err != nil {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	dir, err := os.Open(filepath.Dir(c.path))
	if err != nil {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func writeSynced(path string, b []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// rejects is the report of rejected rows.
type rejects struct {
	path string
	file *os.File
	size int64
}

// openRejects goes on after what the checkpoint knows of: lines behind it belong to a chunk that is done again.
func openRejects(path string, size int64) (*rejects, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the report of rejected rows: %w", err)
	}
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(fmt.Errorf("open the report of rejected rows: %w", err), f.Close())
	}
	if _, err := f.Seek(size, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("open the report of rejected rows: %w", err), f.Close())
	}
	return &rejects{path: path, file: f, size: size}, nil
}

func (r *rejects) add(list []Reject) error {
	if len(list) == 0 {
		return nil
	}
	w := bufio.NewWriter(r.file)
	for _, reject := range list {
		b, err := json.Marshal(reject)
		if err != nil {
			return fmt.Errorf("report a rejected row: %w", err)
		}
		r.size += int64(len(b)) + 1
		// A bufio.Writer keeps its first error until Flush.
		_, _ = w.Write(append(b, '\n'))
	}
	if err := errors.Join(w.Flush(), r.file.Sync()); err != nil {
		return fmt.Errorf("report rejected rows: %w", err)
	}
	return nil
}

// close leaves no empty report behind.
func (r *rejects) close() error {
	err := r.file.Close()
	if r.size == 0 {
		err = errors.Join(err, os.Remove(r.path))
	}
	return err
}
