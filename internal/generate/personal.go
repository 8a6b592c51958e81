package generate

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Every generated UserId, AnonymousId and SessionId begins with personalPrefix, and the malformed ones are of these: so who must not
// show one can be searched for all of them.
const (
	personalPrefix = "9e5017a1-da7a-4"
	personalMail   = "ivan@example.org"
	personalNumber = 950171047
)

func (s source) personal() uuid.UUID { return personal(s.id4()) }

// NewPersonalID is a personal value for a view that is not generated here.
func NewPersonalID() uuid.UUID { return personal(uuid.New()) }

// personal makes an id of version 4 one that begins with personalPrefix.
func personal(id uuid.UUID) uuid.UUID {
	copy(id[:], personalBytes())
	return id
}

// personalBytes are those of personalPrefix that are whole.
func personalBytes() []byte {
	id := uuid.MustParse(personalPrefix + "000-8000-000000000000")
	return id[:6]
}

// PersonalValues finds the personal values of generated views in a text: in any case, with or without hyphens, and as what a logger, a
// driver or a database makes of bytes (hex, base64, lists of numbers).
func PersonalValues() *regexp.Regexp {
	forms := []string{
		`(?i:` + strings.ReplaceAll(personalPrefix, "-", "-?") + `)`,
		regexp.QuoteMeta(personalMail), `\b` + strconv.Itoa(personalNumber) + `\b`,
		`(?i:` + hex.EncodeToString([]byte(personalPrefix)) + `)`,
		strings.Trim(fmt.Sprint([]byte(personalPrefix)), "[]"), strings.Trim(fmt.Sprint(personalBytes()), "[]"),
	}
	for shift := range 3 { // of the value against the groups of three bytes; what neighbours decide too is left out
		text := base64.RawStdEncoding.EncodeToString(append(make([]byte, shift), personalPrefix...))
		forms = append(forms, regexp.QuoteMeta(text[(shift*8+5)/6:(shift+len(personalPrefix))*8/6]))
	}
	return regexp.MustCompile(strings.Join(forms, "|"))
}
