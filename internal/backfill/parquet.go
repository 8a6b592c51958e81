package backfill

import (
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
	"github.com/shopspring/decimal"
)

// parquetRows is a Parquet file whose columns have the names of the fields; the currency's code is IsoCode in a group
// CurrencySnapshot, or a column CurrencyIsoCode. Prices are DECIMAL, integers or text: a floating-point column is refused, for it
// does not hold what the price was.
type parquetRows struct {
	file    *os.File
	size    int64
	total   int64
	rows    parquet.Rows
	columns map[int]parquetColumn
	names   []string
	buffer  []parquet.Row
	filled  int
	at      int
	line    int64
	payload payload
}

type parquetColumn struct {
	field field
	text  func(parquet.Value) string
}

const parquetBuffer = 256

func openParquet(name string) (_ *parquetRows, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	file, err := parquet.OpenFile(f, info.Size())
	if err != nil {
		return nil, fmt.Errorf("open as Parquet: %w", err)
	}
	p := &parquetRows{file: f, size: info.Size(), total: file.NumRows(), columns: map[int]parquetColumn{}, buffer: make([]parquet.Row, parquetBuffer)}
	var columns []string
	for _, path := range file.Schema().Columns() {
		columns = append(columns, strings.Join(path, "."))
	}
	if p.names, err = checkColumns(columns); err != nil {
		return nil, err
	}
	for i, path := range file.Schema().Columns() {
		field, ok := columnField(columns[i])
		if !ok {
			continue
		}
		leaf, found := file.Schema().Lookup(path...)
		if !found || leaf.MaxRepetitionLevel > 0 {
			return nil, fmt.Errorf("column %s is a list; it must be a single value", columns[i])
		}
		text, err := textOf(leaf.Node.Type())
		if err != nil {
			return nil, fmt.Errorf("column %s: %w", columns[i], err)
		}
		p.columns[leaf.ColumnIndex] = parquetColumn{field: field, text: text}
	}
	p.rows = parquet.MultiRowGroup(file.RowGroups()...).Rows()
	return p, nil
}

// textOf returns how values of a type are written exactly.
func textOf(t parquet.Type) (func(parquet.Value) string, error) {
	if logical := t.LogicalType(); logical != nil {
		switch l := logical.Value.(type) {
		case *format.DecimalType:
			return decimalText(t.Kind(), l.Scale)
		case *format.UUIDType:
			return func(v parquet.Value) string {
				id, err := uuid.FromBytes(v.ByteArray())
				if err != nil {
					return string(v.ByteArray())
				}
				return id.String()
			}, nil
		case *format.TimestampType:
			if !l.IsAdjustedToUTC {
				return nil, errors.New("it is a timestamp without a time zone; a time without an offset says no moment")
			}
			return timestampText(l.Unit)
		case *format.IntType:
			if !l.IsSigned {
				return func(v parquet.Value) string {
					if v.Kind() == parquet.Int32 {
						return strconv.FormatUint(uint64(v.Uint32()), 10)
					}
					return strconv.FormatUint(v.Uint64(), 10)
				}, nil
			}
		}
	}
	switch t.Kind() {
	case parquet.ByteArray:
		return func(v parquet.Value) string { return string(v.ByteArray()) }, nil
	case parquet.Int32:
		return func(v parquet.Value) string { return strconv.FormatInt(int64(v.Int32()), 10) }, nil
	case parquet.Int64:
		return func(v parquet.Value) string { return strconv.FormatInt(v.Int64(), 10) }, nil
	case parquet.Float, parquet.Double:
		return nil, errors.New("it holds floating-point numbers, which are not exact; write it as DECIMAL or text")
	default:
		return nil, fmt.Errorf("its type %s means nothing here", t)
	}
}

func decimalText(kind parquet.Kind, scale int32) (func(parquet.Value) string, error) {
	switch kind {
	case parquet.Int32:
		return func(v parquet.Value) string { return decimal.New(int64(v.Int32()), -scale).String() }, nil
	case parquet.Int64:
		return func(v parquet.Value) string { return decimal.New(v.Int64(), -scale).String() }, nil
	case parquet.ByteArray, parquet.FixedLenByteArray:
		return func(v parquet.Value) string { return decimal.NewFromBigInt(signed(v.ByteArray()), -scale).String() }, nil
	default:
		return nil, fmt.Errorf("a DECIMAL kept as %s means nothing here", kind)
	}
}

// signed reads big-endian two's complement.
func signed(b []byte) *big.Int {
	n := new(big.Int).SetBytes(b)
	if len(b) > 0 && b[0]&0x80 != 0 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(len(b))*8))
	}
	return n
}

func timestampText(unit format.TimeUnit) (func(parquet.Value) string, error) {
	var at func(int64) time.Time
	switch unit.Value.(type) {
	case *format.MilliSeconds:
		at = time.UnixMilli
	case *format.MicroSeconds:
		at = time.UnixMicro
	case *format.NanoSeconds:
		at = func(n int64) time.Time { return time.Unix(0, n) }
	default:
		return nil, errors.New("its time unit is not known")
	}
	return func(v parquet.Value) string { return at(v.Int64()).UTC().Format(time.RFC3339Nano) }, nil
}

func (p *parquetRows) next() (row, error) {
	if p.at == p.filled {
		n, err := p.rows.ReadRows(p.buffer)
		if n == 0 {
			if err == nil {
				err = io.ErrNoProgress
			}
			return row{line: p.line + 1}, err
		}
		p.at, p.filled = 0, n
	}
	values := p.buffer[p.at]
	p.at++
	p.line++
	p.payload.reset()
	for _, v := range values {
		column, ok := p.columns[v.Column()]
		if !ok || v.IsNull() {
			continue
		}
		p.payload.text(column.field, column.text(v))
	}
	return row{line: p.line, payload: p.payload.bytes()}, nil
}

// bytes is an estimate: row groups are read in pieces.
func (p *parquetRows) bytes() int64 {
	if p.total == 0 {
		return p.size
	}
	return int64(float64(p.size) * float64(p.line) / float64(p.total))
}

func (p *parquetRows) ignored() []string { return p.names }
func (p *parquetRows) close() error      { return errors.Join(p.rows.Close(), p.file.Close()) }
