package doctest

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// Tree is what docs can name in the repository.
type Tree struct {
	paths     map[string]bool // files and folders, with slashes, "." included
	Targets   map[string]bool // of the Makefile
	Variables map[string]bool // that the Makefile speaks of
}

var (
	target   = regexp.MustCompile(`(?m)^([a-z-]+):`)
	variable = regexp.MustCompile(`\b[A-Z][A-Z_]+\b`)
)

// unversioned are the folders at the root that are made, not kept.
var unversioned = map[string]bool{".git": true, ".cache": true, "bin": true, "run": true}

// LoadTree reads the names of all files of the repository, and its Makefile.
func LoadTree(root string) (Tree, error) {
	var files []string
	err := filepath.WalkDir(root, func(full string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, full)
		if err != nil {
			return err
		}
		if unversioned[rel] {
			if e.IsDir() {
				return filepath.SkipDir
			}
			return nil // In a work tree .git is a file.
		}
		files = append(files, filepath.ToSlash(rel))
		return nil
	})
	if err != nil {
		return Tree{}, err
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		return Tree{}, err
	}
	return newTree(files, string(makefile)), nil
}

func newTree(files []string, makefile string) Tree {
	t := Tree{paths: map[string]bool{}, Targets: map[string]bool{}, Variables: map[string]bool{}}
	for _, f := range files {
		for ; !t.paths[f]; f = path.Dir(f) {
			t.paths[f] = true
		}
	}
	for _, m := range target.FindAllStringSubmatch(makefile, -1) {
		t.Targets[m[1]] = true
	}
	for _, v := range variable.FindAllString(makefile, -1) {
		t.Variables[v] = true
	}
	return t
}

// Has says whether there is a file or folder of that path.
func (t Tree) Has(name string) bool { return t.paths[strings.TrimSuffix(name, "/")] }

// inside returns the path that a word names in the repository, and whether it names one: the word begins with ./ or
// with a folder of the root, which is not one that is made, and is all made of what paths are made of.
func (t Tree) inside(word string) (string, bool) {
	if !plainPath.MatchString(word) {
		return "", false
	}
	if rest, ok := strings.CutPrefix(word, "./"); ok {
		rest = strings.TrimSuffix(rest, "...")
		return path.Clean(rest), true
	}
	first, _, below := strings.Cut(word, "/")
	return path.Clean(word), below && first != "" && !unversioned[first] && t.paths[first]
}

var plainPath = regexp.MustCompile(`^[A-Za-z0-9_./-]+$`)

var (
	makeSpan   = regexp.MustCompile(`^(?:[A-Z]+=\S+ )*make ([a-z-]+)$`)
	symbolSpan = regexp.MustCompile(`\.[A-Z]\w*$`) // pkg/pipeline.Decide
)

// CheckSpans reports what the text between single backticks names and the repository does not have: paths, make
// targets.
func CheckSpans(docs []Document, tree Tree) []string {
	var p problems
	for _, d := range docs {
		for i, line := range d.Prose() {
			for _, span := range codeSpan.FindAllString(line, -1) {
				text := strings.Trim(span, "`")
				if m := makeSpan.FindStringSubmatch(text); m != nil && !tree.Targets[m[1]] {
					p.add(d.Path, i+1, "the Makefile has no target %s", m[1])
				}
				name := symbolSpan.ReplaceAllString(text, "")
				if file, ok := tree.inside(name); ok && !tree.Has(file) && !tree.Has(path.Join(path.Dir(d.Path), file)) {
					p.add(d.Path, i+1, "%s does not exist", text)
				}
			}
		}
	}
	return p
}
