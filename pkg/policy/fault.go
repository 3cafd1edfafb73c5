package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Severity says what a fault does to the set that has it.
type Severity uint8

// The severities.
const (
	SeverityError   Severity = iota // there is no set
	SeverityWarning                 // the set loads, but something in it has no effect or another one than it seems; Options.Strict makes it an error
	SeverityNote                    // the set does what it says; this is what to know about it
)

var severityNames = [...]string{"error", "warning", "note"}

// String returns the word that precedes a fault's text.
func (s Severity) String() string {
	if int(s) < len(severityNames) {
		return severityNames[s]
	}
	return fmt.Sprintf("severity(%d)", uint8(s))
}

// Code tells kinds of faults apart. It is closed: see Codes.
type Code string

// The codes of errors.
const (
	CodeUnreadable       Code = "unreadable"         // a path cannot be read
	CodeFileTooLarge     Code = "file_too_large"     // more than MaxFileSize bytes
	CodeSyntax           Code = "yaml_syntax"        // no YAML
	CodeTooDeep          Code = "too_deep"           // nested deeper than MaxDepth
	CodeTooManyNodes     Code = "too_many_nodes"     // more than MaxNodes, aliases expanded
	CodeAliasLoop        Code = "alias_loop"         // an anchor that contains itself
	CodeBadMerge         Code = "bad_merge"          // << with something else than maps
	CodeBadTag           Code = "bad_tag"            // an explicit tag that does not fit its value
	CodeWrongType        Code = "wrong_type"         // a map where text belongs, and so on
	CodeScalar           Code = "unsupported_scalar" // a number with a fraction, or beyond 64 bits
	CodeKeyNotString     Code = "key_not_string"
	CodeUnknownKey       Code = "unknown_key"
	CodeMisplacedKey     Code = "misplaced_key" // a key of Weir's where it has no meaning
	CodeListOfScalars    Code = "list_of_scalars"
	CodeNotSupported     Code = "not_supported" // known, but not built yet
	CodeInvalidValue     Code = "invalid_value"
	CodeConflict         Code = "conflict" // two fields that exclude each other
	CodeEmptyDomain      Code = "empty_domain"
	CodeDuplicateDomain  Code = "duplicate_domain"
	CodeEmptyKey         Code = "empty_key"
	CodeDuplicateKey     Code = "duplicate_key"
	CodeInvalidUnit      Code = "invalid_unit"
	CodeUnitAndUnlimited Code = "unit_and_unlimited"
	CodeEmptyReplaces    Code = "empty_replaces"
	CodeSelfReplaces     Code = "self_replaces"
	CodeShareThreshold   Code = "share_threshold_without_pattern"
	CodeBadMetadata      Code = "bad_metadata"
	CodeVersionMismatch  Code = "version_mismatch"
	CodeInexactRate      Code = "inexact_rate"
	CodeWindowTooLong    Code = "window_too_long"
	CodeMissingName      Code = "missing_name"    // of one in a list of rate_limits
	CodeDuplicateName    Code = "duplicate_name"  // in a list of rate_limits
	CodeTooManyLimits    Code = "too_many_limits" // more in a list than one request may meet
	CodeEmptySet         Code = "empty_set"
	CodeMoreFaults       Code = "more_faults" // a file has more than maxFaults
)

// The codes of warnings and notes.
const (
	CodeIgnoredKey     Code = "ignored_key"     // a legal key where nobody reads it
	CodeNoEffect       Code = "no_effect"       // a field that another one switches off
	CodeOmittedLimit   Code = "omitted_limit"   // no requests_per_unit is 0: everything is denied
	CodeSecondDocument Code = "second_document" // only the first document of a file counts
	CodeRepeatedKey    Code = "repeated_key"    // the last one wins
	CodeUnreachable    Code = "unreachable"     // an earlier pattern takes all that would match
	CodeActsAsClosed   Code = "acts_as_closed"  // a failure mode that is not built yet
	CodeWindowTail     Code = "window_tail"     // a fixed window admits 2 × limit around its boundary
	CodeBucketOverdraw Code = "bucket_overdraw" // a bucket that is charged afterwards needs overdraw: on
)

// Codes lists all codes.
func Codes() []Code {
	return []Code{
		CodeUnreadable, CodeFileTooLarge, CodeSyntax, CodeTooDeep, CodeTooManyNodes, CodeAliasLoop,
		CodeBadMerge, CodeBadTag, CodeWrongType, CodeScalar, CodeKeyNotString, CodeUnknownKey,
		CodeMisplacedKey, CodeListOfScalars, CodeNotSupported, CodeInvalidValue, CodeConflict,
		CodeEmptyDomain, CodeDuplicateDomain, CodeEmptyKey, CodeDuplicateKey, CodeInvalidUnit,
		CodeUnitAndUnlimited, CodeEmptyReplaces, CodeSelfReplaces, CodeShareThreshold,
		CodeBadMetadata, CodeVersionMismatch, CodeInexactRate, CodeWindowTooLong, CodeEmptySet,
		CodeMissingName, CodeDuplicateName, CodeTooManyLimits, CodeMoreFaults,
		CodeIgnoredKey, CodeNoEffect, CodeOmittedLimit, CodeSecondDocument, CodeRepeatedKey,
		CodeUnreachable, CodeActsAsClosed, CodeWindowTail, CodeBucketOverdraw,
	}
}

// Fault is one thing to say about a policy file: where it is, what is wrong
// and how to mend it.
type Fault struct {
	Severity Severity
	Code     Code

	File         string
	Line, Column int    // from 1; 0 for a fault of the set, or of a file that cannot be read, as a whole
	Path         string // as descriptors[3].rate_limit.unit, "" for the file

	Value   string // the offending text, "" when there is none
	Message string // contains envoyproxy/ratelimit's own text where it has one
	Mend    string
}

// Error returns place, path, message and mend in one line.
func (f Fault) Error() string {
	var b strings.Builder
	if f.File != "" {
		b.WriteString(f.File)
		if f.Line > 0 {
			fmt.Fprintf(&b, ":%d:%d", f.Line, f.Column)
		}
		b.WriteString(": ")
	}
	if f.Severity != SeverityError {
		b.WriteString(f.Severity.String())
		b.WriteString(": ")
	}
	if f.Path != "" {
		b.WriteString(f.Path)
		b.WriteString(": ")
	}
	b.WriteString(f.Message)
	b.WriteString("; ")
	b.WriteString(f.Mend)
	return printable(b.String())
}

// printable escapes what does not belong on a terminal or into a log line;
// texts of a file are repeated in faults.
func printable(s string) string {
	clean := true
	for _, c := range s {
		clean = clean && strconv.IsPrint(c)
	}
	if clean {
		return s
	}
	var b strings.Builder
	for _, c := range s {
		if strconv.IsPrint(c) {
			b.WriteRune(c)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(c), "'"))
		}
	}
	return b.String()
}

// maxShown bounds what a fault repeats of one text of a file.
const maxShown = 200

func cut(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown], "") + "…"
}

// Faults are all that there is to say about a set, in the order of its files
// and of the lines in each.
type Faults []Fault

// Of returns the faults of one severity.
func (f Faults) Of(s Severity) Faults {
	var of Faults
	for _, x := range f {
		if x.Severity == s {
			of = append(of, x)
		}
	}
	return of
}

// Err returns an *Error with the faults that are errors, nil when none is.
func (f Faults) Err() error {
	if errs := f.Of(SeverityError); len(errs) > 0 {
		return &Error{errs}
	}
	return nil
}

// Error is a set that cannot be used.
type Error struct{ Faults Faults }

// Error returns one line for each fault.
func (e *Error) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "\n")
}

// position is a place in a file, from 1.
type position struct{ line, column int }

// path is a place in the tree of a file. It is rendered only for a fault.
type path struct {
	up    *path
	name  string
	index int // of a list's element; then name is ""
}

func (p *path) field(name string) *path { return &path{up: p, name: name} }
func (p *path) element(i int) *path     { return &path{up: p, index: i} }

// String returns the path as descriptors[3].rate_limit.unit.
func (p *path) String() string {
	var parts []string
	for ; p != nil; p = p.up {
		switch {
		case p.name == "":
			parts = append(parts, "["+strconv.Itoa(p.index)+"]")
		case p.up != nil:
			parts = append(parts, "."+cut(p.name))
		default:
			parts = append(parts, cut(p.name))
		}
	}
	slices.Reverse(parts)
	return strings.Join(parts, "")
}

// maxFaults bounds what is kept of one file, so that a file of garbage cannot
// take the memory of a process that serves.
const maxFaults = 1000

// report collects the faults of one file.
type report struct {
	file   string
	faults Faults
	more   bool
}

func (r *report) add(s Severity, c Code, at position, p *path, value, mend, format string, args ...any) {
	if len(r.faults) >= maxFaults {
		if r.more {
			return
		}
		r.more = true
		s, c, value = SeverityError, CodeMoreFaults, ""
		format, args = "this file has more than %d faults", []any{maxFaults}
		mend = "mend the ones before and load it again"
	}
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = cut(s)
		}
	}
	r.faults = append(r.faults, Fault{
		Severity: s, Code: c, File: r.file, Line: at.line, Column: at.column, Path: p.String(),
		Value: cut(value), Message: fmt.Sprintf(format, args...), Mend: mend,
	})
}

func (r *report) fault(c Code, at position, p *path, value, mend, format string, args ...any) {
	r.add(SeverityError, c, at, p, value, mend, format, args...)
}

func (r *report) warn(c Code, at position, p *path, value, mend, format string, args ...any) {
	r.add(SeverityWarning, c, at, p, value, mend, format, args...)
}

func (r *report) note(c Code, at position, p *path, value, mend, format string, args ...any) {
	r.add(SeverityNote, c, at, p, value, mend, format, args...)
}

// sorted returns the faults in line order; those of one place stay in the
// order in which they were found.
func (r *report) sorted() Faults {
	slices.SortStableFunc(r.faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return r.faults
}

// inQuotes returns text between single quotes, as envoyproxy/ratelimit prints it.
func inQuotes(s string) string { return "'" + cut(s) + "'" }
