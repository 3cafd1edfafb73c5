package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/weir-rl/weir/pkg/limit"
)

// descriptorHelp is how descriptors are written on the command line.
const descriptorHelp = "Entries as key=value, separated by commas. A value may contain '='. " +
	`\, \= \\ stand for these characters themselves and \xNN for any byte.`

// parseDescriptor reads key=value,key=value. The first unescaped = of an entry
// ends its key; escapes let every byte occur in both.
func parseDescriptor(text string) ([]limit.Entry, error) {
	var entries []limit.Entry
	var part strings.Builder
	var key string
	inValue := false
	end := func() error {
		if !inValue {
			return fmt.Errorf("descriptor %q: entry %d has no '='; write key=value", text, len(entries)+1)
		}
		entries = append(entries, limit.Entry{Key: key, Value: part.String()})
		part.Reset()
		inValue = false
		return nil
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			b, n, ok := unescape(text[i+1:])
			if !ok {
				return nil, fmt.Errorf(`descriptor %q: byte %d: unknown escape; write \, \= \\ or \xNN`, text, i+1)
			}
			part.WriteByte(b)
			i += n
		case c == '=' && !inValue:
			key, inValue = part.String(), true
			part.Reset()
		case c == ',':
			if err := end(); err != nil {
				return nil, err
			}
		default:
			part.WriteByte(c)
		}
	}
	if err := end(); err != nil {
		return nil, err
	}
	return entries, nil
}

// unescape returns the byte that stands after a backslash and how many bytes
// of the text it took.
func unescape(rest string) (b byte, n int, ok bool) {
	if rest == "" {
		return 0, 0, false
	}
	switch rest[0] {
	case ',', '=', '\\':
		return rest[0], 1, true
	case 'x':
		if len(rest) >= 3 {
			v, err := strconv.ParseUint(rest[1:3], 16, 8)
			return byte(v), 3, err == nil
		}
	}
	return 0, 0, false
}
