package backfill

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/pin-marketplace/vitrina/codecs"
)

// row is one row of a file: a bare JSON payload, or what keeps it from being one.
type row struct {
	line    int64
	payload []byte // valid until the next call of next
	fault   *codecs.Fault
}

// source reads the rows of a file.
type source interface {
	// next returns io.EOF after the last row; another error means that the rest of the file cannot be read.
	next() (row, error)
	bytes() int64 // read from the file so far
	ignored() []string
	close() error
}

// openSource chooses the format by the file's name.
func openSource(name string) (source, error) {
	base, gzipped := strings.CutSuffix(strings.ToLower(name), ".gz")
	switch {
	case strings.HasSuffix(base, ".csv"), strings.HasSuffix(base, ".jsonl"), strings.HasSuffix(base, ".ndjson"), strings.HasSuffix(base, ".json"):
	case strings.HasSuffix(base, ".parquet") && !gzipped:
		return openParquet(name)
	default:
		return nil, errors.New("the name must end in .csv, .jsonl, .ndjson, .json (one object a line), each with or without .gz, or in .parquet")
	}
	in, err := openInput(name, gzipped)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(base, ".csv") {
		src, err := openCSV(in)
		if err != nil {
			return nil, errors.Join(err, in.Close())
		}
		return src, nil
	}
	return &jsonLines{in: in, reader: bufio.NewReaderSize(in, 1<<20)}, nil
}

// input is an opened file, unpacked if it is gzipped, that counts the bytes read from disk.
type input struct {
	file  *os.File
	gzip  *gzip.Reader
	count int64
}

func openInput(name string, gzipped bool) (*input, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	in := &input{file: f}
	if gzipped {
		if in.gzip, err = gzip.NewReader(bufio.NewReaderSize(counting{in}, 1<<20)); err != nil {
			return nil, errors.Join(fmt.Errorf("unpack: %w", err), f.Close())
		}
	}
	return in, nil
}

// counting reads the file itself.
type counting struct{ *input }

func (c counting) Read(p []byte) (int, error) {
	n, err := c.file.Read(p)
	c.count += int64(n)
	return n, err
}

func (in *input) Read(p []byte) (int, error) {
	if in.gzip != nil {
		return in.gzip.Read(p)
	}
	return counting{in}.Read(p)
}

func (in *input) Close() error {
	if in.gzip != nil {
		return errors.Join(in.gzip.Close(), in.file.Close())
	}
	return in.file.Close()
}

// maxLine bounds one line; a payload is some hundred bytes.
const maxLine = 1 << 20

// jsonLines is one object a line. Blank lines count as lines and are left out.
type jsonLines struct {
	in     *input
	reader *bufio.Reader
	line   int64
	buf    []byte
}

func (j *jsonLines) next() (row, error) {
	for {
		j.line++
		tooLong, err := j.read()
		if err != nil {
			return row{line: j.line}, err
		}
		if j.line == 1 {
			j.buf = bytes.TrimPrefix(j.buf, []byte("\xEF\xBB\xBF"))
		}
		if tooLong {
			return row{line: j.line, fault: &codecs.Fault{Code: codecs.CodeUndecodable, Reason: fmt.Sprintf("The line is longer than %d bytes.", maxLine)}}, nil
		}
		if payload := bytes.TrimSpace(j.buf); len(payload) > 0 {
			return row{line: j.line, payload: payload}, nil
		}
	}
}

// read fills buf with the next line. What exceeds maxLine is read and dropped.
func (j *jsonLines) read() (tooLong bool, err error) {
	j.buf = j.buf[:0]
	for {
		part, err := j.reader.ReadSlice('\n')
		if tooLong = tooLong || len(j.buf)+len(part) > maxLine; !tooLong {
			j.buf = append(j.buf, part...)
		}
		switch {
		case err == nil:
			return tooLong, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && (len(j.buf) > 0 || tooLong):
			return tooLong, nil
		default:
			return tooLong, err
		}
	}
}

func (j *jsonLines) bytes() int64      { return j.in.count }
func (j *jsonLines) ignored() []string { return nil }
func (j *jsonLines) close() error      { return j.in.Close() }
