package codecs

import "github.com/pin-marketplace/vitrina/internal/record"

// EncodeRecord writes a whole record in the compact binary form of the loop topic's value and the ledger's raw column.
func EncodeRecord(rec *record.Record) []byte { return nil }

// DecodeRecord reads what EncodeRecord wrote. The result shares data's memory.
func DecodeRecord(data []byte) (*record.Record, error) { return nil, nil }

// AppendBinary appends the mark's encoded form, at most MaxMarkSize bytes.
func (m Mark) AppendBinary(b []byte) ([]byte, error) { return b, nil }

// MarshalBinary returns the mark's encoded form.
func (m Mark) MarshalBinary() ([]byte, error) { return m.AppendBinary(nil) }

// DecodeMark reads what MarshalBinary wrote.
func DecodeMark(data []byte) (Mark, error) { return Mark{}, nil }

// AppendBinary appends the state's encoded form.
func (s *PurchaseState) AppendBinary(b []byte) ([]byte, error) { return b, nil }

// MarshalBinary returns the state's encoded form.
func (s *PurchaseState) MarshalBinary() ([]byte, error) { return s.AppendBinary(nil) }

// DecodePurchaseState reads what MarshalBinary wrote.
func DecodePurchaseState(data []byte) (*PurchaseState, error) { return nil, nil }
