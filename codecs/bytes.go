package codecs

import "fmt"

// Bytes is the Goka codec of every stream and table: bytes in, the same bytes out. Decoding proper happens in the callback, where a
// fault is a value: an error from a Goka codec would end the whole processor over one bad record.
type Bytes struct{}

// Encode takes a []byte. Anything else is a programming error and the only error there is.
func (Bytes) Encode(value any) ([]byte, error) {
	b, ok := value.([]byte)
	if !ok {
		return nil, fmt.Errorf("codecs.Bytes encodes []byte only, got %T", value)
	}
	return b, nil
}

// Decode hands data over as it is, nil included. The result shares data's memory.
func (Bytes) Decode(data []byte) (any, error) { return data, nil }
