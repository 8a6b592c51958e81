package model_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/test/model"
)

func TestExpectedAsJSON(t *testing.T) {
	m := city()
	m.Apply(purchase(1, 1, 50, "Active", project(1), object(1)))
	m.Apply(purchase(1, 2, 50, "Active", object(1)))
	m.Apply(view(1, 1))
	m.Apply(price(`"AreaTotal":1,"NewPrice":1,"ChangedAt":"2026-11-30T10:00:00Z"`))
	want := m.Expected()
	text, err := json.Marshal(want)
	require.NoError(t, err)
	var got model.Expected
	require.NoError(t, json.Unmarshal(text, &got))
	require.Equal(t, want.Cards, got.Cards)
	require.Equal(t, want.Purchases, got.Purchases)
	require.Equal(t, want.Facts, got.Facts)
	require.Error(t, new(model.Ref).UnmarshalText([]byte("nonsense")))
}
