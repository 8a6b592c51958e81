package generate_test

import (
	"testing"

	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/test/model"
)

// BenchmarkItems is the cost of one generated record, with and without the model beside it.
func BenchmarkItems(b *testing.B) {
	for name, withModel := range map[string]bool{"alone": false, "with the model": true} {
		b.Run(name, func(b *testing.B) {
			o := generate.Defaults()
			o.Start, o.Views, o.Purchases, o.Prices = start, b.N, b.N/20, b.N/5
			m := model.New(start.Add(o.Span))
			b.ResetTimer()
			records := 0
			for item := range generate.Items(o) {
				if withModel {
					item.Give(m)
				}
				records++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(records), "ns/record")
		})
	}
}
