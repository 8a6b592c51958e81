package backfill

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/pin-marketplace/vitrina/codecs"
)

// csvRows is a CSV file in UTF-8 with a header of field names. The separator is the comma, the semicolon or the tab, whichever
// the header uses. An empty value is null. Decimals have a point.
type csvRows struct {
	in      *input
	reader  *csv.Reader
	columns []*field // nil: ignored
	names   []string
	payload payload
}

func openCSV(in *input) (*csvRows, error) {
	buffered := bufio.NewReaderSize(in, 1<<20)
	if mark, err := buffered.Peek(3); err == nil && string(mark) == "\xEF\xBB\xBF" {
		if _, err := buffered.Discard(3); err != nil {
			return nil, err
		}
	}
	head, err := buffered.Peek(buffered.Size())
	if len(head) == 0 {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the file is empty; a CSV file begins with a line of column names")
		}
		return nil, err
	}
	c := &csvRows{in: in, reader: csv.NewReader(buffered)}
	c.reader.Comma = separator(string(head))
	c.reader.ReuseRecord = true
	header, err := c.reader.Read()
	if err != nil {
		return nil, fmt.Errorf("read the line of column names: %w", err)
	}
	columns := make([]string, len(header))
	for i, name := range header {
		columns[i] = strings.TrimSpace(name)
	}
	if c.names, err = checkColumns(columns); err != nil {
		return nil, err
	}
	for _, name := range columns {
		if f, ok := columnField(name); ok {
			c.columns = append(c.columns, &f)
		} else {
			c.columns = append(c.columns, nil)
		}
	}
	return c, nil
}

// separator is the one that the first line has most of.
func separator(head string) rune {
	line, _, _ := strings.Cut(head, "\n")
	best := ','
	for _, r := range ";\t" {
		if strings.Count(line, string(r)) > strings.Count(line, string(best)) {
			best = r
		}
	}
	return best
}

func (c *csvRows) next() (row, error) {
	record, err := c.reader.Read()
	var parse *csv.ParseError
	switch {
	case errors.As(err, &parse) && errors.Is(err, csv.ErrFieldCount):
		return row{line: int64(parse.StartLine), fault: undecodable(fmt.Sprintf("The row has %d columns, the header %d.", len(record), len(c.columns)))}, nil
	case errors.As(err, &parse) && parse.Line > parse.StartLine:
		// It may have swallowed everything up to the end of the file.
		return row{line: int64(parse.StartLine)}, errors.New("a quote that begins here is not closed; mend the file and load it again")
	case errors.As(err, &parse):
		return row{line: int64(parse.StartLine), fault: undecodable("The row is not CSV: " + parse.Err.Error() + ".")}, nil
	case err != nil:
		return row{}, err
	}
	line, _ := c.reader.FieldPos(0)
	c.payload.reset()
	for i, value := range record {
		f := c.columns[i]
		if f == nil || value == "" {
			continue
		}
		if !utf8.ValidString(value) {
			return row{line: int64(line), fault: undecodable("The row is not valid UTF-8.")}, nil
		}
		c.payload.text(*f, value)
	}
	return row{line: int64(line), payload: c.payload.bytes()}, nil
}

func undecodable(reason string) *codecs.Fault {
	return &codecs.Fault{Code: codecs.CodeUndecodable, Reason: reason}
}

func (c *csvRows) bytes() int64      { return c.in.count }
func (c *csvRows) ignored() []string { return c.names }
func (c *csvRows) close() error      { return c.in.Close() }
