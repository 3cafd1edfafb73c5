package rls

import (
	"strings"
	"unicode/utf8"
)

// Bounds of what an answer carries, in bytes. Longer text is cut.
const (
	maxName     = 128 // of a limit, in x-ratelimit-limit
	maxMetadata = 256 // one value
)

// limitName makes a name fit for current_limit. Envoy prints it between quotes
// into x-ratelimit-limit without escaping anything, in a list that commas and
// semicolons separate; so only visible ASCII without those stays, and a space.
func limitName(s string) string {
	return replace(s, maxName, func(r rune) bool {
		return r >= ' ' && r < 0x7f && !strings.ContainsRune(`"\,;`, r)
	})
}

// metadataText makes a text fit for metadata, which Envoy writes into access
// logs and headers: valid UTF-8 without control characters.
func metadataText(s string) string {
	return replace(s, maxMetadata, func(r rune) bool { return r >= ' ' && (r < 0x7f || r >= 0xa0) })
}

// replace cuts s to a number of bytes at the border of a character, and puts _
// for every character that is not good, or is none. It does not allocate when
// there is nothing to do.
func replace(s string, most int, good func(rune) bool) string {
	if len(s) > most {
		end := most
		for end > most-utf8.UTFMax && !utf8.RuneStart(s[end]) {
			end--
		}
		s = s[:end]
	}
	bad := func(r rune) bool { return !good(r) }
	if utf8.ValidString(s) && strings.IndexFunc(s, bad) < 0 {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 || !good(r) {
			b.WriteByte('_')
		} else {
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}

// validHeader says whether a header may be sent to Envoy, which writes names
// and values as they are: the name must be a lower-case token, the value
// visible text in valid UTF-8. Names that Envoy acts on itself are refused.
func validHeader(name, value string) bool {
	if name == "" || name == "host" || name == "content-length" || name == "transfer-encoding" || name == "connection" {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	if !utf8.ValidString(value) || strings.TrimSpace(value) != value {
		return false
	}
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// appendJSON appends s as a JSON string. What could end a string, a line or an
// HTML element is escaped; what is no UTF-8 becomes U+FFFD.
func appendJSON(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ' || r == 0x7f || r == '<' || r == '>' || r == '&' || r == '\u2028' || r == '\u2029':
			b = append(b, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
