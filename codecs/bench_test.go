package codecs

import (
	"testing"
	"time"

	"github.com/pin-marketplace/vitrina/internal/record"
)

const benchView = `{"EventId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01","AggregateId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8a02","AggregateType":"PropertyObjectView","TenantId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8a03","CreatedAt":"2026-11-30T10:15:30.1234567+03:00","ContractVersion":1,"Payload":{"PropertyObjectViewId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8a02","PropertyObjectId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8a05","SessionId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8a06","AnonymousId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8a07","UserId":null,"ViewSource":"Catalog","ViewedAt":"2026-11-30T10:00:30.1234567+03:00","LastActivityAt":"2026-11-30T10:05:30.1234567+03:00","DurationSeconds":42,"FilterSnapshot":null}}`

const benchPrice = `{"EventId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01","AggregateId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8a02","AggregateType":"PropertyObject","TenantId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8a03","CreatedAt":"2026-11-30T10:15:30.1234567+03:00","ContractVersion":1,"Payload":{"PropertyObjectId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8a02","DeveloperId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8a03","ProjectId":"0197c0de-7f00-7a51-9c1e-2f6f5d1b8a04","BuildingId":101,"LayoutGroupId":7,"LayoutId":9001,"AreaTotal":54.30,"OldPrice":null,"NewPrice":12345678.90,"OldPricePerMeter":null,"NewPricePerMeter":null,"CurrencyId":643,"CurrencySnapshot":{"CurrencyId":643,"IsoCode":"RUB","Name":"Российский рубль","Sign":"₽"},"ChangedAt":"2026-11-30T10:15:30.1234567+03:00","Source":"Talent","Version":17}}`

func BenchmarkDecodeView(b *testing.B) {
	rec := &record.Record{Value: []byte(benchView)}
	codec := NewViewCodec([]string{"Catalog", "Search", "Selection"})
	b.SetBytes(int64(len(benchView)))
	b.ReportAllocs()
	for b.Loop() {
		if _, fault := codec.Decode(rec); fault != nil {
			b.Fatal(fault)
		}
	}
}

// The bare form, with its metadata in headers.
func BenchmarkDecodeBareView(b *testing.B) {
	r := bare(viewDoc())
	codec := NewViewCodec([]string{"Catalog", "Search", "Selection"})
	b.SetBytes(int64(len(r.Value)))
	b.ReportAllocs()
	for b.Loop() {
		if _, fault := codec.Decode(r); fault != nil {
			b.Fatal(fault)
		}
	}
}

func BenchmarkDecodePurchase(b *testing.B) {
	r := enveloped(purchaseDoc())
	b.SetBytes(int64(len(r.Value)))
	b.ReportAllocs()
	for b.Loop() {
		if _, fault := DecodePurchase(r); fault != nil {
			b.Fatal(fault)
		}
	}
}

func BenchmarkDecodePrice(b *testing.B) {
	rec := &record.Record{Value: []byte(benchPrice)}
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	b.SetBytes(int64(len(benchPrice)))
	b.ReportAllocs()
	for b.Loop() {
		if _, fault := DecodePrice(rec, now); fault != nil {
			b.Fatal(fault)
		}
	}
}
