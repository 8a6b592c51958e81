// Package price carries price changes into the history of prices. Mapping and validation are the codec's (codecs.DecodePrice); the
// history is append-only and its duplicates collapse in the table, so that no state is left to decide upon.
package price

import "github.com/pin-marketplace/vitrina/codecs"

// Warning is an oddity of an event that is written all the same.
type Warning string

// The warnings; the texts are the log events.
const (
	WarnContractMismatch Warning = "contract-mismatch" // D1
	WarnCurrency         Warning = "currency-not-rub"  // the IsoCode is not RUB: more than one currency is beyond version 1
	WarnTenantMismatch   Warning = "tenant-mismatch"   // the metadata name another tenant than the payload's developer
)

// Warnings lists what to warn about, none for a sound event.
func Warnings(p *codecs.Price) []Warning {
	var out []Warning
	if p.ContractMismatch {
		out = append(out, WarnContractMismatch)
	}
	if p.NonRUB {
		out = append(out, WarnCurrency)
	}
	if p.TenantMismatch {
		out = append(out, WarnTenantMismatch)
	}
	return out
}
