package main

import (
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/weir-rl/weir/pkg/sidecar"
)

// settings collects the values of setting flags by path.
type settings map[string][]string

// textFlag is the flag of one setting. Its text is parsed later, with the
// file's and the environment's, so that all faults come in one list.
type textFlag struct{ values []string }

// Decode is called once for each time that the flag is given.
func (f *textFlag) Decode(ctx *kong.DecodeContext) error {
	var v string
	if err := ctx.Scan.PopValueInto("value", &v); err != nil {
		return err
	}
	f.values = append(f.values, v)
	return nil
}

// boolFlag is a textFlag that may stand alone and then means true.
type boolFlag struct{ textFlag }

// Decode is called once for each time that the flag is given.
func (f *boolFlag) Decode(ctx *kong.DecodeContext) error {
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		f.values = append(f.values, "true")
		return nil
	}
	return f.textFlag.Decode(ctx)
}

// IsBool tells kong that the flag takes no argument but after an =.
func (*boolFlag) IsBool() bool { return true }

// settingFlags makes one flag per line of the table of settings. kong builds
// its flags from struct fields, so the struct is made here.
func settingFlags() (func() settings, kong.Plugins) {
	table := sidecar.Table()
	fields := make([]reflect.StructField, len(table))
	for i := range table {
		s := &table[i]
		typ := reflect.TypeFor[textFlag]()
		if s.IsBoolean() {
			typ = reflect.TypeFor[boolFlag]()
		}
		help, _, _ := strings.Cut(strings.ReplaceAll(s.Doc, "`", ""), ". ")
		help = strings.TrimSuffix(help, ".") + "."
		if s.Default != "" {
			help += " Default " + s.Default + "."
		}
		fields[i] = reflect.StructField{
			Name: "F" + strconv.Itoa(i),
			Type: typ,
			Tag: reflect.StructTag(fmt.Sprintf("name:%q placeholder:%q group:%q help:%q",
				s.Path, placeholder(s), "Settings", help)),
		}
	}
	target := reflect.New(reflect.StructOf(fields))
	given := func() settings {
		m := settings{}
		for i := range table {
			var values []string
			switch f := target.Elem().Field(i).Interface().(type) {
			case textFlag:
				values = f.values
			case boolFlag:
				values = f.values
			}
			if len(values) > 0 {
				m[table[i].Path] = values
			}
		}
		return m
	}
	return given, kong.Plugins{target.Interface()}
}

// placeholder stands for the value in the help: the choices, or the type.
func placeholder(s *sidecar.Setting) string {
	switch {
	case strings.Contains(s.Type, ", "):
		return strings.ReplaceAll(s.Type, ", ", "|")
	case s.List:
		return "TEXT,TEXT"
	}
	return strings.ToUpper(strings.ReplaceAll(s.Type, " ", "-"))
}

// maxSettingsFile is far above any file of settings: a larger one is a
// mistyped path.
const maxSettingsFile = 1 << 20

// loadSettings puts file, environment and flags together. The error is about
// the file as such; faults are about what stands in the three.
func loadSettings(e *env, file string, given settings) (*sidecar.Settings, []sidecar.Fault) {
	in := sidecar.Inputs{File: file, Environ: e.environ, Flags: given}
	var unreadable []sidecar.Fault
	if file != "" {
		data, err := readAtMost(file, maxSettingsFile+1)
		switch {
		case err != nil:
			unreadable = []sidecar.Fault{{Place: "--config", Problem: err.Error(), Mend: "name a file of settings"}}
		case len(data) > maxSettingsFile:
			unreadable = []sidecar.Fault{{Place: "--config", Value: file, Problem: "larger than 1 MiB", Mend: "name a file of settings"}}
		default:
			in.Data = data
		}
	}
	if unreadable != nil {
		// What the file would have set is not missing because nobody set it.
		return &sidecar.Settings{Config: sidecar.Defaults()}, unreadable
	}
	return sidecar.Load(in)
}

// readAtMost reads a file, but not more than that: /dev/zero has no end.
func readAtMost(file string, most int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}
