package backfill

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// field is one field of the payload that a column can stand for.
type field struct {
	name     string
	integer  bool
	required bool
}

const (
	currencySnapshot = "CurrencySnapshot"
	currencyIsoCode  = "CurrencySnapshot.IsoCode"
)

// fields of the price event (contracts, section 1; specification 004).
func fields() []field {
	return []field{
		{name: "PropertyObjectId", required: true}, {name: "DeveloperId", required: true}, {name: "ProjectId", required: true},
		{name: "BuildingId", integer: true, required: true}, {name: "LayoutGroupId", integer: true, required: true},
		{name: "LayoutId", integer: true, required: true}, {name: "AreaTotal", required: true}, {name: "OldPrice"},
		{name: "NewPrice", required: true}, {name: "OldPricePerMeter"}, {name: "NewPricePerMeter"},
		{name: "CurrencyId", integer: true, required: true}, {name: currencyIsoCode, required: true}, {name: "ChangedAt", required: true},
		{name: "Source"}, {name: "Version", integer: true},
	}
}

// columnField finds the field of a column by its name: PascalCase or camelCase as in events, and CurrencyIsoCode or IsoCode for the
// code inside CurrencySnapshot.
func columnField(column string) (field, bool) {
	switch upperFirst(column) {
	case "CurrencyIsoCode", "IsoCode":
		column = currencyIsoCode
	}
	column = strings.ReplaceAll(column, "currencySnapshot.", "CurrencySnapshot.")
	column = strings.ReplaceAll(column, ".isoCode", ".IsoCode")
	i := slices.IndexFunc(fields(), func(f field) bool { return f.name == upperFirst(column) })
	if i < 0 {
		return field{}, false
	}
	return fields()[i], true
}

func upperFirst(s string) string {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return s
	}
	return string(s[0]-'a'+'A') + s[1:]
}

// checkColumns returns the columns that mean nothing, and an error for required fields that no column gives: then every row
// would be rejected, so nothing is begun. Two columns for one field are an error too.
func checkColumns(columns []string) (ignored []string, err error) {
	seen := map[string]string{}
	for _, column := range columns {
		f, ok := columnField(column)
		if !ok {
			ignored = append(ignored, column)
			continue
		}
		if other, twice := seen[f.name]; twice {
			return nil, fmt.Errorf("columns %s and %s are both %s", other, column, f.name)
		}
		seen[f.name] = column
	}
	var missing []string
	for _, f := range fields() {
		if _, ok := seen[f.name]; f.required && !ok {
			missing = append(missing, f.name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("there is no column %s; there are %s", strings.Join(missing, ", "), strings.Join(columns, ", "))
	}
	return ignored, nil
}

// payload builds a JSON object field by field. The codec judges it, so nothing is judged here.
type payload struct{ buf []byte }

func (p *payload) reset() { p.buf = append(p.buf[:0], '{') }

// text adds a field by the text of its value; integers go in bare so that the codec sees a number.
func (p *payload) text(f field, value string) {
	quoted := func() []byte {
		b, err := json.Marshal(value)
		if err != nil {
			return []byte("null") // a string always marshals
		}
		return b
	}
	if f.integer && isInteger(value) {
		p.raw(f, []byte(value))
		return
	}
	p.raw(f, quoted())
}

// raw adds a field by its JSON value.
func (p *payload) raw(f field, value []byte) {
	if len(p.buf) > 1 {
		p.buf = append(p.buf, ',')
	}
	if f.name == currencyIsoCode {
		p.buf = append(append(append(p.buf, `"CurrencySnapshot":{"IsoCode":`...), value...), '}')
		return
	}
	p.buf = append(append(append(append(p.buf, '"'), f.name...), `":`...), value...)
}

func (p *payload) bytes() []byte {
	p.buf = append(p.buf, '}')
	return p.buf
}

func isInteger(s string) bool {
	digits := strings.TrimPrefix(s, "-")
	return digits != "" && strings.Trim(digits, "0123456789") == "" && (digits == "0" || digits[0] != '0')
}
