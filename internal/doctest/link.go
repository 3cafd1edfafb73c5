package doctest

import (
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

var (
	link     = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)
	codeSpan = regexp.MustCompile("`[^`]*`")
)

// CheckLinks reports links to files that the tree does not have and to headings that their document does not have.
// Links to the web are not followed.
func CheckLinks(docs []Document, tree Tree) []string {
	var p problems
	anchors := map[string]map[string]bool{}
	for _, d := range docs {
		anchors[d.Path] = d.anchors()
	}
	for _, d := range docs {
		for i, line := range d.Prose() {
			for _, m := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(line, "`"), -1) {
				if strings.HasPrefix(m[1], "https://") {
					continue
				}
				file, anchor, hasAnchor := strings.Cut(m[1], "#")
				target := d.Path
				if file != "" {
					target = path.Join(path.Dir(d.Path), file)
				}
				switch known := anchors[target]; {
				case !tree.Has(target):
					p.add(d.Path, i+1, "the link leads to %s, which does not exist", target)
				case hasAnchor && known == nil:
					p.add(d.Path, i+1, "the link leads to a heading of %s, which is none of the documents", target)
				case hasAnchor && !known[anchor]:
					p.add(d.Path, i+1, "the link leads to #%s, a heading that %s does not have", anchor, target)
				}
			}
		}
	}
	return p
}

// anchors are the names that GitHub gives to the headings of the document.
func (d Document) anchors() map[string]bool {
	names := map[string]bool{}
	for _, line := range d.Prose() {
		text := strings.TrimLeft(line, "#")
		if text == line || !strings.HasPrefix(text, " ") {
			continue
		}
		name := slug(text)
		for base, n := name, 1; names[name]; n++ {
			name = base + "-" + strconv.Itoa(n)
		}
		names[name] = true
	}
	return names
}

func slug(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		case r == ' ':
			return '-'
		}
		return -1
	}, strings.TrimSpace(heading))
}
