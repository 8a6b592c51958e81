package tablestore

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"github.com/parquet-go/parquet-go/bloom"
)

const (
	filterFile = "FILTER"     // snapshot of the filter as of one flush
	filterLog  = "FILTER.log" // key hashes of the flushes since

	filterMagic = "vtfilt1\n"
	logMagic    = "vtflog1\n"

	// byteOrderMark tells files of a machine with another byte order: layers are written as they lie in memory.
	byteOrderMark = uint64(0x0102030405060708)

	logHeaderLen = len(logMagic) + len(filterID{}) + 8
)

// filterID ties filter files to the LevelDB beside them. A new one is written to LevelDB whenever the files were not used, so that
// files found unusable once can never fit again by chance when the numbers of the flushes come round.
type filterID [16]byte

// errFilterFiles says why the filter's files cannot be used; a scan replaces them.
var errFilterFiles = errors.New("filter files unusable")

// castagnoli is made once by the standard library.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// filterFiles are the filter on disk. One goroutine uses it: the one that opens the store, then its flusher.
type filterFiles struct {
	dir      string
	id       filterID
	log      *os.File
	logBytes int64
	buf      []byte
}

// load returns the filter and the number of the last flush it covers.
func (ff *filterFiles) load() (*filter, uint64, error) {
	f, base, err := ff.loadSnapshot()
	if err != nil {
		return nil, 0, err
	}
	last, good, err := ff.replayLog(f, base)
	if err != nil {
		return nil, 0, err
	}
	// Anything behind the last whole frame is a torn write: new frames must not hide behind it.
	file, err := os.OpenFile(filepath.Join(ff.dir, filterLog), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("opening the filter's log: %w", err)
	}
	ff.log, ff.logBytes = file, good
	if err := errors.Join(file.Truncate(good), seekTo(file, good)); err != nil {
		return nil, 0, fmt.Errorf("cutting the filter's log: %w", err)
	}
	if good == 0 {
		if err := ff.startLog(file, base); err != nil {
			return nil, 0, err
		}
	}
	return f, last, nil
}

func seekTo(f *os.File, offset int64) error {
	_, err := f.Seek(offset, io.SeekStart)
	return err
}

func (ff *filterFiles) loadSnapshot() (*filter, uint64, error) {
	file, err := os.Open(filepath.Join(ff.dir, filterFile))
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errFilterFiles, err)
	}
	defer file.Close() //nolint:errcheck // opened for reading only, nothing can be lost
	info, err := file.Stat()
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errFilterFiles, err)
	}
	sum := crc32.New(castagnoli())
	r := bufio.NewReaderSize(file, 1<<20)
	f, base, err := ff.readSnapshot(io.TeeReader(io.LimitReader(r, info.Size()-4), sum), info.Size())
	if err != nil {
		return nil, 0, fmt.Errorf("%w: reading %s: %w", errFilterFiles, filterFile, err)
	}
	var stored uint32
	if err := binary.Read(r, binary.LittleEndian, &stored); err != nil || stored != sum.Sum32() {
		return nil, 0, fmt.Errorf("%w: %s has a wrong checksum", errFilterFiles, filterFile)
	}
	return f, base, nil
}

// snapshotHeader is followed by Layers times {capacity, keys, blocks} and their blocks, then the CRC of everything.
type snapshotHeader struct {
	Magic  [8]byte
	Order  [8]byte
	ID     filterID
	Flush  uint64
	Layers uint32
}

type layerHeader struct {
	Capacity, Keys, Blocks int64
}

func (ff *filterFiles) readSnapshot(r io.Reader, size int64) (*filter, uint64, error) {
	var head snapshotHeader
	if err := binary.Read(r, binary.LittleEndian, &head); err != nil {
		return nil, 0, err
	}
	if string(head.Magic[:]) != filterMagic || head.Order != nativeMark() || head.ID != ff.id {
		return nil, 0, errors.New("it belongs to another store, version or machine")
	}
	if head.Layers == 0 || head.Layers > 64 {
		return nil, 0, fmt.Errorf("%d layers", head.Layers)
	}
	f := &filter{}
	for range head.Layers {
		var lh layerHeader
		if err := binary.Read(r, binary.LittleEndian, &lh); err != nil {
			return nil, 0, err
		}
		// Checked before the memory is taken: the checksum is known only at the end.
		if lh.Blocks <= 0 || lh.Blocks > size/bloom.BlockSize || lh.Capacity <= 0 || lh.Keys < 0 {
			return nil, 0, errors.New("a layer of impossible size")
		}
		l := &layer{capacity: lh.Capacity, keys: lh.Keys, blocks: make(bloom.SplitBlockFilter, lh.Blocks)}
		if _, err := io.ReadFull(r, l.blocks.Bytes()); err != nil {
			return nil, 0, err
		}
		f.layers = append(f.layers, l)
	}
	if n, err := io.Copy(io.Discard, r); err != nil || n != 0 {
		return nil, 0, errors.New("bytes behind the last layer")
	}
	return f, head.Flush, nil
}

// replayLog adds the hashes of the flushes after base and returns the last flush and the length of the good part of the log.
func (ff *filterFiles) replayLog(f *filter, base uint64) (last uint64, good int64, err error) {
	data, err := os.ReadFile(filepath.Join(ff.dir, filterLog))
	if errors.Is(err, os.ErrNotExist) {
		return base, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %w", errFilterFiles, err)
	}
	if !bytes.HasPrefix(data, ff.logHeader(base)) {
		// The log of an earlier snapshot (a crash before the new one was made), or no log at all.
		return base, 0, nil
	}
	good, last = int64(logHeaderLen), base
	for {
		flush, hashes, n := nextFrame(data[good:])
		if n == 0 || flush != last+1 {
			return last, good, nil
		}
		for ; len(hashes) > 0; hashes = hashes[8:] {
			f.add(binary.LittleEndian.Uint64(hashes))
		}
		last, good = flush, good+int64(n)
	}
}

// A frame is: number of hashes (4 bytes), number of the flush (8), the hashes (8 each), CRC of all that (4).
const (
	frameHeadLen = 12
	frameTailLen = 4
)

func nextFrame(data []byte) (flush uint64, hashes []byte, length int) {
	if len(data) < frameHeadLen+frameTailLen {
		return 0, nil, 0
	}
	count := int64(binary.LittleEndian.Uint32(data))
	size := frameHeadLen + count*8 + frameTailLen
	if size > int64(len(data)) {
		return 0, nil, 0
	}
	body, tail := data[:size-frameTailLen], data[size-frameTailLen:size]
	if crc32.Checksum(body, castagnoli()) != binary.LittleEndian.Uint32(tail) {
		return 0, nil, 0
	}
	return binary.LittleEndian.Uint64(body[4:]), body[frameHeadLen:], int(size)
}

// append notes a flush's hashes. It must return before the flush's LevelDB batch is written: a hash too many is a false
// positive, a hash too few a lost state. It is not synced: after a machine's crash the numbers do not match and a scan follows.
func (ff *filterFiles) append(flush uint64, hashes []uint64) error {
	if ff.log == nil {
		return nil // no snapshot yet: the files cannot be used anyway
	}
	b := binary.LittleEndian.AppendUint32(ff.buf[:0], uint32(len(hashes)))
	b = binary.LittleEndian.AppendUint64(b, flush)
	for _, h := range hashes {
		b = binary.LittleEndian.AppendUint64(b, h)
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli()))
	ff.buf = b
	n, err := ff.log.Write(b)
	ff.logBytes += int64(n)
	if err != nil {
		return fmt.Errorf("writing the filter's log: %w", err)
	}
	return nil
}

// worthSaving says that the log costs more at the next start than a sixteenth of the snapshot.
func (ff *filterFiles) worthSaving(f *filter) bool {
	return ff.log == nil || ff.logBytes-int64(logHeaderLen) > f.bytes()/16
}

// save writes a snapshot as of a flush and begins a new log. The filter must not change meanwhile.
func (ff *filterFiles) save(f *filter, flush uint64) error {
	if err := ff.writeSynced(filterFile, func(w io.Writer) error { return ff.writeSnapshot(w, f, flush) }); err != nil {
		return fmt.Errorf("saving the filter: %w", err)
	}
	// From here a crash leaves the snapshot with the log of the one before, which is told by the header and left out.
	file, err := ff.createTemp(filterLog)
	if err != nil {
		return fmt.Errorf("making the filter's log: %w", err)
	}
	if err := ff.startLog(file, flush); err != nil {
		return errors.Join(err, file.Close())
	}
	if err := os.Rename(file.Name(), filepath.Join(ff.dir, filterLog)); err != nil {
		return errors.Join(fmt.Errorf("making the filter's log: %w", err), file.Close())
	}
	old := ff.log
	ff.log = file
	if old != nil {
		if err := old.Close(); err != nil {
			return fmt.Errorf("closing the filter's old log: %w", err)
		}
	}
	return nil
}

func (ff *filterFiles) startLog(file *os.File, base uint64) error {
	n, err := file.Write(ff.logHeader(base))
	if err != nil {
		return fmt.Errorf("beginning the filter's log: %w", err)
	}
	ff.logBytes = int64(n)
	return nil
}

func (ff *filterFiles) logHeader(base uint64) []byte {
	b := append([]byte(logMagic), ff.id[:]...)
	return binary.LittleEndian.AppendUint64(b, base)
}

func (ff *filterFiles) writeSnapshot(w io.Writer, f *filter, flush uint64) error {
	head := snapshotHeader{Order: nativeMark(), ID: ff.id, Flush: flush, Layers: uint32(len(f.layers))}
	copy(head.Magic[:], filterMagic)
	if err := binary.Write(w, binary.LittleEndian, head); err != nil {
		return err
	}
	for _, l := range f.layers {
		if err := binary.Write(w, binary.LittleEndian, layerHeader{l.capacity, l.keys, int64(len(l.blocks))}); err != nil {
			return err
		}
		if _, err := w.Write(l.blocks.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// writeSynced replaces a file as a whole, or leaves it as it was.
func (ff *filterFiles) writeSynced(name string, content func(io.Writer) error) error {
	file, err := ff.createTemp(name)
	if err != nil {
		return err
	}
	if err := errors.Join(writeSummed(file, content), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), filepath.Join(ff.dir, name))
}

// createTemp uses one name, so that crashes leave one file at most.
func (ff *filterFiles) createTemp(name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(ff.dir, name+".tmp"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
}

func writeSummed(file *os.File, content func(io.Writer) error) error {
	sum := crc32.New(castagnoli())
	w := bufio.NewWriterSize(file, 1<<20)
	if err := content(io.MultiWriter(w, hash.Hash(sum))); err != nil {
		return err
	}
	if err := binary.Write(w, binary.LittleEndian, sum.Sum32()); err != nil {
		return err
	}
	return errors.Join(w.Flush(), file.Sync())
}

func (ff *filterFiles) close() error {
	if ff.log == nil {
		return nil
	}
	err := errors.Join(ff.log.Sync(), ff.log.Close())
	ff.log = nil
	return err
}

func nativeMark() [8]byte {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], byteOrderMark)
	return b
}
