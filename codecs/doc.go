// Package codecs turns bytes into values and back: the input events, in their envelope or bare form, and the stored forms of the
// group tables, the loop topic and the ledger. It knows neither Kafka clients nor databases.
//
// A decoder never fails: a record that breaks its contract yields a Fault, which becomes its dead letter. All of it is pure and safe
// for concurrent use.
//
// What the specification leaves open is decided as follows.
//
//   - A field that is known but not read (FilterSnapshot, the rest of CurrencySnapshot) may be anything, but not come twice.
//   - Optional fields are checked too where they are given: UserId, Source, Version, the old price, prices per metre.
//   - Envelope and headers: a value that is there wins even if it is unusable; EventId before MessageId; null is missing. In the bare
//     form the envelope's names mean nothing inside the value. The empty Guid is no EventId.
//   - A string that holds half a surrogate pair is no text: a violation where it is read, ignored elsewhere. No byte order mark.
//   - Integers are written without fraction and exponent (5e1 and 1.0 are refused); a decimal string holds a JSON number, nothing else.
//   - Times: T and Z may be lower case, a leap second is the first second of the next minute, offsets go up to 23:59 as in RFC 3339; an
//     instant outside the years 1 to 9999 UTC is out of range.
//   - The TargetId of a Post or of an unknown kind is not looked at.
//   - A purchase names at most MaxTargets cards: more is out of range.
//   - The order of faults: not JSON, repeated fields, EventId, then the fields in the order of the contract.
package codecs
