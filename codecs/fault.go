package codecs

// Code is a stable dead-letter code (contracts, section 2). A new cause gets a new code, listed in docs/dead-letters.md.
type Code string

// The codes of the contracts.
const (
	CodeUndecodable            Code = "CONTRACT_UNDECODABLE"
	CodeInvalidField           Code = "CONTRACT_INVALID_FIELD"
	CodeValueOutOfRange        Code = "VALUE_OUT_OF_RANGE"
	CodeOptimisticLockConflict Code = "OPTIMISTIC_LOCK_CONFLICT"
	CodePropertyObjectNotFound Code = "CATALOG_SYNC_PROPERTY_OBJECT_NOT_FOUND"
	CodeDatabaseRejected       Code = "DATABASE_REJECTED"
)

// CodeRecordTooLarge is this project's own: the record must move to another partition and is larger than the loop topic takes.
const CodeRecordTooLarge Code = "RECORD_TOO_LARGE"

// Fault says why a record breaks its contract. Codecs return it as a value, never as a failure of the codec: an error
// from a Goka codec ends the whole processor.
type Fault struct {
	Code   Code
	Field  string // the payload or envelope field, empty when the record as a whole is at fault
	Reason string // one sentence for a person, free of personal data (no value of UserId, AnonymousId, SessionId)
}

// Error makes a Fault usable as an error in the offline tools (explain-event, backfill).
func (f *Fault) Error() string { return string(f.Code) + ": " + f.Reason }
