package policy

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxFiles and maxFolders bound what one path may bring, against a path such
// as / by mistake.
const (
	maxFiles   = 10_000
	maxFolders = 10_000
)

// Load reads and compiles: LoadPaths, then Compile.
func Load(paths []string, opts Options) (*Set, Faults) { return Compile(LoadPaths(paths), opts) }

// LoadFile reads one file. One that cannot be read becomes a File with that
// fault, so that nothing hides the faults of the others.
func LoadFile(name string) *File { return readFile(name).parse() }

// LoadPaths reads files and directories, as ReadPaths does, and parses them.
func LoadPaths(paths []string) []*File { return ReadPaths(paths).Parse() }

// Sources are the policy files of some paths as they were read at one time,
// not parsed yet. They tell a change of files from a change of nothing before
// anybody pays for parsing.
type Sources []source

// source is one file: its bytes, or the File that says why there are none.
type source struct {
	name   string
	data   []byte
	sum    [sha256.Size]byte
	faulty *File
	found  bool // below a directory that was named, not named itself
}

const mendPath = "correct the path or the permissions"

func readFile(name string) source {
	f, err := os.Open(name)
	if err != nil {
		return noSource(unreadable(name, CodeUnreadable, mendPath, reason(err)))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err != nil {
		return noSource(unreadable(name, CodeUnreadable, mendPath, reason(err)))
	}
	return source{name: name, data: data, sum: sha256.Sum256(data)}
}

func noSource(f *File) source { return source{name: f.Name, sum: f.sum, faulty: f} }

func (s source) parse() *File {
	if s.faulty != nil {
		return s.faulty
	}
	f := Parse(s.name, s.data)
	f.found = s.found
	return f
}

// Parse returns the files, each with its faults.
func (s Sources) Parse() []*File {
	files := make([]*File, len(s))
	for i := range s {
		files[i] = s[i].parse()
	}
	return files
}

// Digest covers the names and contents of the files, and why some could not be
// read. A Set that is compiled of all of them has the same one.
func (s Sources) Digest() [sha256.Size]byte {
	d := newDigest()
	for i := range s {
		d.add(s[i].name, s[i].sum)
	}
	return d.sum()
}

// reason returns an error of the file system without the path, which a fault
// shows anyway.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return fmt.Sprintf("%s: %v", p.Op, p.Err)
	}
	return err.Error()
}

// ReadPaths reads files and directories in the order given. A directory brings
// every file in it and below, in the order of their paths in it, whatever
// their extension, as envoyproxy/ratelimit does; symbolic links are followed.
// Entries whose name begins with a dot are skipped, as the peer does only with
// RUNTIME_IGNOREDOTFILES=true: Kubernetes keeps the real files of a mounted
// ConfigMap in ..data, where each would be found a second time. What is no
// regular file is skipped as well. A path given by name is read in any case.
func ReadPaths(paths []string) Sources {
	var files Sources
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			files = append(files, noSource(unreadable(p, CodeUnreadable, mendPath, reason(err))))
			continue
		}
		if !info.IsDir() {
			files = append(files, readFile(p))
			continue
		}
		w := walk{root: p}
		w.folder("", nil)
		slices.Sort(w.names)
		for _, rel := range w.names {
			s := readFile(filepath.Join(p, rel))
			s.found = true
			files = append(files, s)
		}
		for _, f := range w.faulty {
			files = append(files, noSource(f))
		}
	}
	return files
}

// walk collects the files below one directory.
type walk struct {
	root    string
	names   []string // relative, with slashes of the system
	faulty  []*File
	folders int
}

func (w *walk) fail(rel string, err error) {
	w.faulty = append(w.faulty, unreadable(filepath.Join(w.root, rel), CodeUnreadable, "correct or remove it, or its permissions", reason(err)))
}

var errTooMany = errors.New("more files or folders than a policy set can have")

// folder walks one directory; around are the directories that it lies in, so
// that a symbolic link to one of them does not go round in circles.
func (w *walk) folder(rel string, around []fs.FileInfo) {
	full := filepath.Join(w.root, rel)
	info, err := os.Stat(full)
	if err != nil {
		w.fail(rel, err)
		return
	}
	if slices.ContainsFunc(around, func(a fs.FileInfo) bool { return os.SameFile(a, info) }) {
		w.fail(rel, errors.New("a symbolic link to a directory that it lies in"))
		return
	}
	around = append(around[:len(around):len(around)], info)
	entries, err := os.ReadDir(full)
	if err != nil {
		w.fail(rel, err)
		return
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		below := filepath.Join(rel, e.Name())
		info, err := os.Stat(filepath.Join(w.root, below))
		switch {
		case err != nil:
			w.fail(below, err)
		case info.IsDir():
			if w.folders++; w.folders > maxFolders {
				w.tooMany()
				return
			}
			w.folder(below, around)
		case info.Mode().IsRegular():
			if len(w.names) >= maxFiles {
				w.tooMany()
				return
			}
			w.names = append(w.names, below)
		}
	}
}

func (w *walk) tooMany() {
	if len(w.faulty) == 0 || w.faulty[len(w.faulty)-1].Name != w.root {
		w.fail("", errTooMany)
	}
}
