package limit

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
)

// Key is where the state of one check lives: a digest of everything that
// tells it from other checks and, for checks of a tenant, a tag that puts the
// tenant's keys into one slot of a cluster.
type Key struct {
	Digest [16]byte
	Tag    [8]byte
	Tagged bool
}

// keyScheme is how keys are made; the number is part of every key, so that a
// later scheme never meets the keys of this one (semantics S20).
const keyScheme = "weir:1:"

// Append appends the name of the key in the store (semantics S19):
// {digest} alone, or {tag} and then the digest, in base64url.
func (k *Key) Append(dst []byte, prefix string) []byte {
	dst = append(dst, prefix...)
	dst = append(dst, keyScheme...)
	dst = append(dst, '{')
	if k.Tagged {
		dst = base64.RawURLEncoding.AppendEncode(dst, k.Tag[:])
		dst = append(dst, '}')
		return base64.RawURLEncoding.AppendEncode(dst, k.Digest[:])
	}
	dst = base64.RawURLEncoding.AppendEncode(dst, k.Digest[:])
	return append(dst, '}')
}

// Scheme separates the keys of one deployment from those of another. All
// sidecars that share a budget must have the same one.
type Scheme struct {
	Prefix      string // stands before every key as it is; no braces
	Secret      string // keeps principals from being guessed out of keys
	Namespace   string // separates environments on one store
	TenantEntry string // the entry whose value tags a key; "" tags none
}

// PathLevel is one level of a rule's path in its policy file, as far as keys
// depend on it.
type PathLevel struct {
	Key, Value string // as in the file; Value is "" for any value
	Shared     bool   // share_threshold: the pattern stands for the value
}

// KeyMaker makes the keys of one rule. It is immutable and safe for
// concurrent use.
type KeyMaker struct {
	static []byte // the part of the pre-image that does not depend on the request
	levels []PathLevel
	tenant int // index of the level that tags, -1 for none
	tag    []byte
}

// The pre-image is a list of fields, each as its length (uvarint) and its
// bytes; a list of pairs is preceded by its count as a field of its own. So it
// decodes back to its fields, and no byte can move from one field to the next
// (failure F29).

func appendField[T string | []byte](dst []byte, f T) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(f)))
	return append(dst, f...)
}

func appendCount(dst []byte, n int) []byte {
	return appendField(dst, binary.AppendUvarint(nil, uint64(n)))
}

// Maker returns what makes the keys of the rule with this path and name in
// this domain.
func (s Scheme) Maker(domain string, path []PathLevel, name string) *KeyMaker {
	m := &KeyMaker{levels: slices.Clone(path), tenant: -1}
	b := appendField(nil, s.Prefix)
	b = appendField(b, s.Secret)
	b = appendField(b, s.Namespace)
	b = appendField(b, domain)
	b = appendCount(b, len(path))
	for i, l := range path {
		b = appendField(b, l.Key)
		b = appendField(b, l.Value)
		if s.TenantEntry != "" && l.Key == s.TenantEntry && !l.Shared && m.tenant < 0 {
			m.tenant = i
		}
	}
	m.static = appendField(b, name)
	if m.tenant >= 0 {
		m.tag = appendField(appendField(nil, s.Secret), s.Namespace)
	}
	return m
}

// AppendPreImage appends what the digest of these entries is made of. There
// must be as many entries as the rule's path has levels.
func (m *KeyMaker) AppendPreImage(dst []byte, entries []Entry) []byte {
	dst = append(dst, m.static...)
	for i := range entries {
		v := entries[i].Value
		if i < len(m.levels) && m.levels[i].Shared {
			v = m.levels[i].Value
		}
		dst = appendField(dst, entries[i].Key)
		dst = appendField(dst, v)
	}
	return dst
}

// Key returns the key of these entries.
func (m *KeyMaker) Key(entries []Entry) Key {
	var k Key
	var buf [512]byte
	sum := sha256.Sum256(m.AppendPreImage(buf[:0], entries))
	copy(k.Digest[:], sum[:])
	if m.tenant >= 0 && m.tenant < len(entries) {
		b := append(buf[:0], m.tag...)
		b = appendField(b, entries[m.tenant].Value)
		sum = sha256.Sum256(b)
		copy(k.Tag[:], sum[:])
		k.Tagged = true
	}
	return k
}

// PreImage is a decoded pre-image.
type PreImage struct {
	Prefix, Secret, Namespace, Domain string
	Path                              []Entry
	Name                              string
	Entries                           []Entry
}

var errPreImage = errors.New("not the pre-image of a key")

// DecodePreImage splits a pre-image into the fields that it was made of. It
// takes nothing that AppendPreImage does not write.
func DecodePreImage(b []byte) (PreImage, error) {
	bad := false
	field := func() string {
		n, w := uvarint(b)
		if w <= 0 || n > uint64(len(b)-w) {
			bad = true
			b = nil
			return ""
		}
		f := string(b[w : w+int(n)])
		b = b[w+int(n):]
		return f
	}
	var p PreImage
	p.Prefix, p.Secret, p.Namespace, p.Domain = field(), field(), field(), field()
	count := []byte(field())
	n, w := uvarint(count)
	if bad || w <= 0 || w != len(count) || n > uint64(len(b)) {
		return PreImage{}, errPreImage
	}
	for range n {
		p.Path = append(p.Path, Entry{field(), field()})
	}
	p.Name = field()
	for len(b) > 0 && !bad {
		p.Entries = append(p.Entries, Entry{field(), field()})
	}
	if bad || len(p.Entries) != len(p.Path) {
		return PreImage{}, errPreImage
	}
	return p, nil
}

// uvarint is binary.Uvarint but for numbers that are longer than they need be.
func uvarint(b []byte) (uint64, int) {
	n, w := binary.Uvarint(b)
	if w > 1 && b[w-1] == 0 {
		return 0, 0
	}
	return n, w
}
