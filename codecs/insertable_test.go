package codecs

import (
	"math"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/shopspring/decimal"
	"github.com/stretchr/testify/require"
)

// requireInsertable checks what each column of the facts can hold.
func requireInsertable(t testing.TB, p *Price) {
	t.Helper()
	column := func(d decimal.Decimal, precision int) {
		scaled := d.Shift(2)
		require.True(t, scaled.IsInteger(), "%s has more than two decimals", d)
		require.True(t, scaled.Abs().LessThan(decimal.New(1, int32(precision))), "%s is beyond Decimal(%d,2)", d, precision)
	}
	column(p.AreaTotal, 10)
	require.True(t, p.AreaTotal.IsPositive())
	column(p.NewPrice, 18)
	require.False(t, p.NewPrice.IsNegative())
	column(p.NewPricePerMeter, 18)
	column(p.OldPrice.Decimal, 18)
	column(p.OldPricePerMeter.Decimal, 18)
	require.Equal(t, time.UTC, p.EventTime.Location())
	require.Zero(t, p.EventTime.Nanosecond())
	require.True(t, p.EventTime.Unix() >= 0 && p.EventTime.Unix() <= math.MaxUint32)
	for _, s := range []string{p.FactID, p.SourceEventID, p.Fact.TenantID, p.CurrencyIsoCode, p.ChangeSource} {
		require.True(t, utf8.ValidString(s))
	}
	require.True(t, p.BuildingID > 0 && p.LayoutGroupID > 0 && p.LayoutID > 0)
	require.NotEmpty(t, p.FactID)
}
