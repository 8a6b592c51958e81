package tablestore

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/syndtr/goleveldb/leveldb/journal"
	ldbstorage "github.com/syndtr/goleveldb/leveldb/storage"
)

// errIncomplete says that files of a LevelDB directory are missing or cut. LevelDB itself would open some such directories: its
// newest offset would then stand for values that are gone.
var errIncomplete = errors.New("incomplete LevelDB directory")

// inspect looks for what LevelDB does not check when it opens: that the journal its manifest names is there, that the tables
// have their length, and that nothing is missing between two journals. It reports whether the directory is empty.
//
// A manifest cut behind a record loses its newest changes. When that hides a table, the journal which the older manifest
// still names has been deleted; when it hides a compaction, the tables merged by it have been (LevelDB checks those).
func inspect(files ldbstorage.Storage) (empty bool, err error) {
	all, err := files.List(ldbstorage.TypeAll)
	if err != nil {
		return false, fmt.Errorf("listing the files: %w", err)
	}
	if len(all) == 0 {
		return true, nil
	}
	fd, err := files.GetMeta()
	if err != nil {
		return false, fmt.Errorf("%w: no current manifest: %w", errIncomplete, err)
	}
	m, err := readManifest(files, fd)
	if err != nil {
		return false, fmt.Errorf("%w: reading %s: %w", errIncomplete, fd, err)
	}
	for num, size := range m.tables {
		if err := checkTable(files, ldbstorage.FileDesc{Type: ldbstorage.TypeTable, Num: num}, size); err != nil {
			return false, err
		}
	}
	return false, checkJournals(files, all, m.journal)
}

// manifest is what inspect needs of LevelDB's version file.
type manifest struct {
	journal int64           // oldest journal whose writes are not in tables
	tables  map[int64]int64 // live tables and their sizes
}

// Fields of a manifest record, as LevelDB's format numbers them.
const (
	fieldComparer    = 1
	fieldJournal     = 2
	fieldNextFile    = 3
	fieldSequence    = 4
	fieldCompactPtr  = 5
	fieldDeleted     = 6
	fieldAdded       = 7
	fieldPrevJournal = 9
)

func readManifest(files ldbstorage.Storage, fd ldbstorage.FileDesc) (m manifest, err error) {
	file, err := files.Open(fd)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	m = manifest{journal: -1, tables: make(map[int64]int64)}
	for records := journal.NewReader(file, nil, true, true); ; {
		record, err := records.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return m, err
		}
		if err := m.apply(&fieldReader{r: bufio.NewReader(record)}); err != nil {
			return m, err
		}
	}
	if m.journal < 0 {
		return m, errors.New("it names no journal")
	}
	return m, nil
}

// apply replays one record. Deletions come before additions: a table moved to another level is in both.
func (m *manifest) apply(r *fieldReader) error {
	for {
		field := r.uint()
		if errors.Is(r.err, io.EOF) {
			return nil
		}
		if r.err != nil {
			return r.err
		}
		switch field {
		case fieldComparer:
			r.bytes()
		case fieldJournal:
			m.journal = int64(r.uint())
		case fieldNextFile, fieldSequence, fieldPrevJournal:
			r.uint()
		case fieldCompactPtr:
			r.uint()
			r.bytes()
		case fieldDeleted:
			r.uint()
			delete(m.tables, int64(r.uint()))
		case fieldAdded:
			r.uint()
			num, size := int64(r.uint()), int64(r.uint())
			r.bytes()
			r.bytes()
			m.tables[num] = size
		default:
			return fmt.Errorf("unknown field %d", field)
		}
		if r.err != nil {
			return fmt.Errorf("a record ends inside field %d", field)
		}
	}
}

// fieldReader reads varints and byte strings and remembers the first error.
type fieldReader struct {
	r   *bufio.Reader
	err error
}

func (f *fieldReader) uint() uint64 {
	if f.err != nil {
		return 0
	}
	var v uint64
	v, f.err = binary.ReadUvarint(f.r)
	return v
}

func (f *fieldReader) bytes() {
	n := f.uint()
	if f.err == nil {
		_, f.err = io.CopyN(io.Discard, f.r, int64(n))
	}
}

const (
	tableFooterLen = 48
	tableBlockTail = 5
	tableMagic     = "\x57\xfb\x80\x8b\x24\x75\x47\xdb"
)

// checkTable looks at a table's length and footer. The footer has no checksum, and LevelDB takes as much memory as it says.
func checkTable(files ldbstorage.Storage, fd ldbstorage.FileDesc, size int64) (err error) {
	file, err := files.Open(fd)
	if err != nil {
		return fmt.Errorf("%w: %w", errIncomplete, err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	length, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("reading %s: %w", fd, err)
	}
	if length != size || size < tableFooterLen {
		return fmt.Errorf("%w: %s has %d bytes, not %d", errIncomplete, fd, length, size)
	}
	footer := make([]byte, tableFooterLen)
	if _, err := file.ReadAt(footer, size-tableFooterLen); err != nil {
		return fmt.Errorf("reading %s: %w", fd, err)
	}
	if !bytes.HasSuffix(footer, []byte(tableMagic)) {
		return fmt.Errorf("%w: %s has no footer", errIncomplete, fd)
	}
	r := &fieldReader{r: bufio.NewReader(bytes.NewReader(footer))}
	for range 2 { // the index of the index, the index
		offset, length := r.uint(), r.uint()
		room := uint64(size - tableFooterLen - tableBlockTail)
		if r.err != nil || offset > room || length > room-offset {
			return fmt.Errorf("%w: %s has a damaged footer", errIncomplete, fd)
		}
	}
	return nil
}

// checkJournals wants the oldest journal to be there and, when a second one follows (LevelDB was stopped while it moved the
// first one into a table), the first one to be whole: LevelDB numbers all its writes, without a gap between journals.
func checkJournals(files ldbstorage.Storage, all []ldbstorage.FileDesc, oldest int64) (err error) {
	var journals []ldbstorage.FileDesc
	for _, fd := range all {
		if fd.Type == ldbstorage.TypeJournal && fd.Num >= oldest {
			journals = append(journals, fd)
		}
	}
	slices.SortFunc(journals, func(a, b ldbstorage.FileDesc) int { return int(a.Num - b.Num) })
	if len(journals) == 0 || journals[0].Num != oldest {
		return fmt.Errorf("%w: journal %d is missing", errIncomplete, oldest)
	}
	if len(journals) == 1 {
		return nil // cut at its end it only loses the newest batches, each with its own offset
	}
	var next uint64
	for i, fd := range journals {
		if next, err = checkSequence(files, fd, next, i > 0); err != nil {
			return err
		}
	}
	return nil
}

const batchHeadLen = 12 // sequence number of the first write (8 bytes), number of writes (4)

// checkSequence returns the sequence number that must follow the journal's last write. Unless the journal is the first, its own
// first write must be next; so an emptied journal (next 0) may only be followed by empty ones.
func checkSequence(files ldbstorage.Storage, fd ldbstorage.FileDesc, next uint64, follows bool) (_ uint64, err error) {
	file, err := files.Open(fd)
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", fd, err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	head := make([]byte, batchHeadLen)
	for batches := journal.NewReader(file, nil, true, true); ; follows = true {
		batch, err := batches.Next()
		if errors.Is(err, io.EOF) {
			return next, nil
		}
		if err != nil {
			return 0, fmt.Errorf("%w: reading %s: %w", errIncomplete, fd, err)
		}
		if _, err := io.ReadFull(batch, head); err != nil {
			return 0, fmt.Errorf("%w: reading %s: %w", errIncomplete, fd, err)
		}
		first, count := binary.LittleEndian.Uint64(head), binary.LittleEndian.Uint32(head[8:])
		if follows && first != next {
			return 0, fmt.Errorf("%w: %s begins a batch at write %d where %d was due", errIncomplete, fd, first, next)
		}
		next = first + uint64(count)
	}
}
