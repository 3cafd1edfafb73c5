package sidecar

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Setting is one line of the table of settings. File, environment, flags and
// docs/CONFIGURATION.md all come from that table, so they cannot differ.
//
// A value is text wherever it comes from: a YAML scalar is taken as it is
// written in the file. So 0660 means the same in a file, a variable and a
// flag, and one parser gives one set of faults.
type Setting struct {
	Path    string
	Type    string
	Unit    string // of a value without one; "" where there is none
	Default string // as it would be written; "" for none
	Doc     string // one paragraph of Markdown

	// Secret says that the value can hold credentials. It is never printed as
	// it is.
	Secret bool

	// List says that the value is a list: a sequence in YAML, and separated
	// by commas in a variable or a flag.
	List bool

	// set parses the items (one, unless List) into the field; it returns a
	// *wrong.
	set func(c *Config, items []string) error

	// get prints the field as it would be written.
	get func(c *Config) string
}

// The types of settings, as the documentation names them.
const (
	typeText     = "text"
	typeBoolean  = "boolean"
	typeInteger  = "integer"
	typeDuration = "duration"
	typeSize     = "size"
	typeMode     = "file mode"
	typeList     = "list of texts"
	typeAddress  = "address"
	typeURL      = "URL"
	typePath     = "path"
)

// Env is the name of the setting's environment variable.
func (s *Setting) Env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(s.Path, ".", "_"))
}

// Flag is the name of the setting's flag.
func (s *Setting) Flag() string { return flagOf(s.Path) }

func flagOf(path string) string { return "--" + path }

// IsBoolean says that the flag may stand without a value.
func (s *Setting) IsBoolean() bool { return s.Type == typeBoolean }

// Show returns the setting's value in c as it may be shown to anyone who may
// read the process's settings: credentials hidden.
func (s *Setting) Show(c *Config) string { return s.hide(s.get(c)) }

func (s *Setting) hide(text string) string {
	if s.Secret {
		return redactURL(text)
	}
	return text
}

func text(path, typ, def, doc string, field func(*Config) *string, checks ...func(string) error) Setting {
	return Setting{
		Path: path, Type: typ, Default: def, Doc: doc,
		get: func(c *Config) string { return *field(c) },
		set: func(c *Config, items []string) error {
			for _, check := range checks {
				if err := check(items[0]); err != nil {
					return err
				}
			}
			*field(c) = items[0]
			return nil
		},
	}
}

func choice(path, def, doc string, names []string, field func(*Config) *string) Setting {
	oneOf := func(v string) error {
		if slices.Contains(names, v) {
			return nil
		}
		return &wrong{"not one of " + strings.Join(names, ", "), "write one of them"}
	}
	return text(path, strings.Join(names, ", "), def, doc, field, oneOf)
}

// named is a choice whose values are a closed set of another package.
func named[T fmt.Stringer](path, def, doc string, all []T, field func(*Config) *T) Setting {
	names := make([]string, len(all))
	for i, v := range all {
		names[i] = v.String()
	}
	return Setting{
		Path: path, Type: strings.Join(names, ", "), Default: def, Doc: doc,
		get: func(c *Config) string { return (*field(c)).String() },
		set: func(c *Config, items []string) error {
			i := slices.Index(names, items[0])
			if i < 0 {
				return &wrong{"not one of " + strings.Join(names, ", "), "write one of them"}
			}
			*field(c) = all[i]
			return nil
		},
	}
}

func boolean(path, def, doc string, field func(*Config) *bool) Setting {
	return Setting{
		Path: path, Type: typeBoolean, Default: def, Doc: doc,
		get: func(c *Config) string { return strconv.FormatBool(*field(c)) },
		set: func(c *Config, items []string) error {
			switch items[0] {
			case "true":
				*field(c) = true
			case "false":
				*field(c) = false
			default:
				return &wrong{"not a boolean", "write true or false"}
			}
			return nil
		},
	}
}

func integer(path, unit string, def int, doc string, least, most int, field func(*Config) *int) Setting {
	return Setting{
		Path: path, Type: typeInteger, Unit: unit, Default: strconv.Itoa(def), Doc: doc,
		get: func(c *Config) string { return strconv.Itoa(*field(c)) },
		set: func(c *Config, items []string) error {
			n, err := strconv.Atoi(items[0])
			if err != nil {
				return &wrong{"not a whole number", fmt.Sprintf("write one from %d to %d", least, most)}
			}
			if n < least || n > most {
				return &wrong{"out of range", fmt.Sprintf("write a number from %d to %d", least, most)}
			}
			*field(c) = n
			return nil
		},
	}
}

func duration(path string, def time.Duration, doc string, least, most time.Duration, field func(*Config) *time.Duration) Setting {
	return Setting{
		Path: path, Type: typeDuration, Default: def.String(), Doc: doc,
		get: func(c *Config) string { return field(c).String() },
		set: func(c *Config, items []string) error {
			d, err := time.ParseDuration(items[0])
			if err != nil {
				return &wrong{"not a duration", "write a number with a unit, as 10ms, 5s or 1m30s"}
			}
			if d < least || d > most {
				return &wrong{"out of range", fmt.Sprintf("write a duration from %s to %s", least, most)}
			}
			*field(c) = d
			return nil
		},
	}
}

// sizeUnits are tried in this order, so the bare B comes last.
var sizeUnits = []struct {
	name  string
	bytes int
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"B", 1}}

func size(path string, def int, doc string, least, most int, field func(*Config) *int) Setting {
	return Setting{
		Path: path, Type: typeSize, Unit: "bytes", Default: formatSize(def), Doc: doc,
		get: func(c *Config) string { return formatSize(*field(c)) },
		set: func(c *Config, items []string) error {
			digits, unit := items[0], 1
			for _, u := range sizeUnits {
				if rest, ok := strings.CutSuffix(digits, u.name); ok {
					digits, unit = strings.TrimSpace(rest), u.bytes
					break
				}
			}
			n, err := strconv.Atoi(digits)
			if err != nil {
				return &wrong{"not a size", "write a number of bytes, or one with KiB, MiB or GiB"}
			}
			// Division keeps an absurd number from wrapping around.
			if n < 0 || n > most/unit || n*unit < least {
				return &wrong{"out of range", fmt.Sprintf("write a size from %s to %s", formatSize(least), formatSize(most))}
			}
			*field(c) = n * unit
			return nil
		},
	}
}

func formatSize(n int) string {
	for i := 2; i >= 0; i-- {
		if u := sizeUnits[i]; n >= u.bytes && n%u.bytes == 0 {
			return strconv.Itoa(n/u.bytes) + u.name
		}
	}
	return strconv.Itoa(n)
}

func fileMode(path, def, doc string, field func(*Config) *fs.FileMode) Setting {
	return Setting{
		Path: path, Type: typeMode, Unit: "octal", Default: def, Doc: doc,
		get: func(c *Config) string { return fmt.Sprintf("%04o", uint32(*field(c))) },
		set: func(c *Config, items []string) error {
			n, err := strconv.ParseUint(strings.TrimPrefix(items[0], "0o"), 8, 32)
			if err != nil || n > 0o777 {
				return &wrong{"not a file mode", "write octal digits, as 0660"}
			}
			*field(c) = fs.FileMode(n)
			return nil
		},
	}
}

func list(path, doc string, field func(*Config) *[]string) Setting {
	return Setting{
		Path: path, Type: typeList, Doc: doc, List: true,
		get: func(c *Config) string { return strings.Join(*field(c), ",") },
		set: func(c *Config, items []string) error {
			if slices.Contains(items, "") {
				return &wrong{"an empty text in the list", "leave it out"}
			}
			*field(c) = items
			return nil
		},
	}
}
