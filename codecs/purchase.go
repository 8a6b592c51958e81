package codecs

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// Bounds of a purchase.
const (
	// MaxTargets is how many cards one purchase may name, and how many of all that it ever named its state remembers: 17 bytes
	// each, so that an encoded state stays under 900 KiB and thus under the broker's default message size.
	MaxTargets = 50_000

	maxUnknownKinds = 8
	maxKindLen      = 64
)

const (
	purchaseID = iota
	purchaseTargets
	purchaseBoostWeight
	purchaseStatus
	purchaseEndsAt
	purchaseVersion
	purchaseTenantID
)

func purchaseFieldName(i int) string {
	return [...]string{"PurchaseId", "Targets", "BoostWeight", "Status", "EndsAt", "Version", "TenantId", ""}[i]
}

func purchaseField(name []byte) int {
	switch string(name) {
	case "PurchaseId", "purchaseId":
		return purchaseID
	case "Targets", "targets":
		return purchaseTargets
	case "BoostWeight", "boostWeight":
		return purchaseBoostWeight
	case "Status", "status":
		return purchaseStatus
	case "EndsAt", "endsAt":
		return purchaseEndsAt
	case "Version", "version":
		return purchaseVersion
	case "TenantId", "tenantId":
		return purchaseTenantID
	}
	return -1
}

const (
	targetKind = iota
	targetID
)

func targetFieldName(i int) string {
	return [...]string{"TargetKind", "TargetId", ""}[i]
}

func targetField(name []byte) int {
	switch string(name) {
	case "TargetKind", "targetKind":
		return targetKind
	case "TargetId", "targetId":
		return targetID
	}
	return -1
}

// DecodePurchase reads a record of pin.promotion.purchase-changed.v1 (specification 000, "Входные данные"; decisions D1 to D7, D14,
// D18 to D24). An empty list of targets is valid (D4). Safe for concurrent use; the result shares no memory with the record.
func DecodePurchase(rec *record.Record) (*Purchase, *Fault) {
	m := message{fields: fields{nameOf: purchaseFieldName}}
	if fault := m.scan(rec.Value, purchaseField); fault != nil {
		return nil, fault
	}
	p := &Purchase{}
	found := m.meta(rec, &p.Meta)
	f := &m.fields
	f.checkRepeated()
	f.requireEventID(&p.Meta, found)

	f.id(purchaseID).put(&p.PurchaseID)
	if f.requireKind(purchaseTargets, kindArray, "an array") {
		p.readTargets(f)
	}
	p.BoostWeight = int32(f.int32(purchaseBoostWeight))
	if f.fault == nil && (p.BoostWeight < 1 || p.BoostWeight > 100) {
		f.reject(purchaseBoostWeight, "1 to 100")
	}
	p.Status = f.status(purchaseStatus)
	p.EndsAt, _ = f.time(purchaseEndsAt)
	p.Version = f.positive(purchaseVersion)
	f.guid(purchaseTenantID).put(&p.TenantID)
	if f.fault != nil {
		return nil, f.fault
	}
	return p, nil
}

// status reads a required name of the enum.
func (f *fields) status(i int) Status {
	b := f.string(i)
	if f.fault != nil {
		return ""
	}
	switch string(b) {
	case string(StatusActive):
		return StatusActive
	case string(StatusExpired):
		return StatusExpired
	case string(StatusCancelled):
		return StatusCancelled
	case string(StatusPending):
		return StatusPending
	}
	f.reject(i, "Active, Expired, Cancelled or Pending")
	return ""
}

// readTargets reads the array Targets. The TargetId of a Post or of an unknown kind is not looked at: those targets are others' (D5),
// and what is wrong with them must not hold up ours.
func (p *Purchase) readTargets(f *fields) {
	v := f.spans[purchaseTargets]
	s := scanner{data: f.data[:v.end]}
	pos, more := s.item(s.enter(v.start), true, ']')
	for n := 0; more; n++ {
		if s.kind(pos) != kindObject {
			entry := fields{data: f.data, nameOf: func(int) string { return fmt.Sprintf("Targets[%d]", n) }}
			entry.spans[0], _ = s.value(pos)
			entry.reject(0, "an object")
			f.fault = entry.fault
			return
		}
		entry := fields{data: f.data, nameOf: targetFieldName, list: "Targets", index: n}
		pos = s.members(s.enter(pos), &entry, targetField)
		p.readTarget(&entry)
		if f.fault = entry.fault; f.fault != nil {
			return
		}
		pos, more = s.item(pos, false, ']')
	}
	slices.SortFunc(p.Targets, CompareTargets)
	p.Targets = slices.Compact(p.Targets)
	if len(p.Targets) > MaxTargets {
		f.fail(CodeValueOutOfRange, purchaseTargets, "names %d cards, more than the %d that a purchase may have", len(p.Targets), MaxTargets)
	}
}

func (p *Purchase) readTarget(entry *fields) {
	entry.checkRepeated()
	kind := entry.string(targetKind)
	if entry.fault != nil {
		return
	}
	switch string(kind) {
	case string(KindProject):
		p.Targets = append(p.Targets, Target{KindProject, entry.id(targetID).uuid()})
	case string(KindPropertyObject):
		p.Targets = append(p.Targets, Target{KindPropertyObject, entry.id(targetID).uuid()})
	case "Post":
		p.PostTargets++
	default:
		p.UnknownTargets++
		name := shorten(string(kind), maxKindLen)
		if len(p.UnknownKinds) < maxUnknownKinds && !slices.Contains(p.UnknownKinds, name) {
			p.UnknownKinds = append(p.UnknownKinds, name)
		}
	}
}

// CompareTargets orders targets by kind, then id: the order of Purchase.Targets and PurchaseState.
func CompareTargets(a, b Target) int {
	if c := cmp.Compare(a.Kind, b.Kind); c != 0 {
		return c
	}
	return bytes.Compare(a.ID[:], b.ID[:])
}

// requireEventID faults an event without a usable EventId (D22).
func (f *fields) requireEventID(meta *Meta, found bool) {
	switch {
	case f.fault != nil || meta.HasMessageID:
	case !found:
		f.fault = &Fault{Code: CodeInvalidField, Field: "EventId",
			Reason: "The field EventId is required, but it is missing in the envelope and in the headers."}
	default:
		f.fault = &Fault{Code: CodeInvalidField, Field: "EventId",
			Reason: "The field EventId must be a Guid that is not empty, but it is not."}
	}
}
