package doctest

import (
	"strings"
)

// Command is one simple command of a fence: the words of a line, or of a part of it.
type Command struct {
	Path  string
	Line  int
	Run   bool     // a test runs it
	Env   []string // NAME=value words before it
	Words []string
}

// Sidecar returns the arguments of a call of our program, and whether it is one.
func (c Command) Sidecar() ([]string, bool) {
	if len(c.Words) > 0 && (c.Words[0] == "sidecar" || c.Words[0] == "bin/sidecar") {
		return c.Words[1:], true
	}
	return nil, false
}

// Commands returns those of all fences that are marked sh.
func Commands(docs []Document) []Command {
	var all []Command
	for _, d := range docs {
		for _, f := range d.Fences() {
			if f.Is("sh run") || f.Is("sh show") {
				all = append(all, f.commands()...)
			}
		}
	}
	return all
}

// commands splits the fence into simple commands. It knows of the shell what our docs use: quotes, comments, lines
// continued by a backslash, and the operators between commands; redirections are left out with their targets.
func (f Fence) commands() []Command {
	var all []Command
	c := Command{Path: f.Path, Line: f.Line, Run: f.Is("sh run")}
	line, word, inWord, redirect := f.Line, "", false, false
	endWord := func() {
		name, _, assigns := strings.Cut(word, "=")
		switch {
		case !inWord:
		case redirect:
			redirect = false
		case assigns && len(c.Words) == 0 && isName(name):
			c.Env = append(c.Env, word)
		default:
			c.Words = append(c.Words, word)
		}
		word, inWord = "", false
	}
	endCommand := func() {
		endWord()
		if len(c.Words) > 0 {
			all = append(all, c)
		}
		c = Command{Path: f.Path, Line: line, Run: c.Run}
	}
	text := f.Body
	for i := 0; i < len(text); i++ {
		switch b := text[i]; b {
		case '\'', '"':
			inWord = true
			end := strings.IndexByte(text[i+1:], b)
			if end < 0 {
				end = len(text) - i - 1
			}
			word += text[i+1 : i+1+end]
			i += end + 1
		case '\\':
			if i+1 < len(text) && text[i+1] == '\n' {
				line++
			} else if i+1 < len(text) {
				word, inWord = word+text[i+1:i+2], true
			}
			i++
		case '#':
			if inWord {
				word += "#"
				continue
			}
			for i+1 < len(text) && text[i+1] != '\n' {
				i++
			}
		case ' ', '\t':
			endWord()
		case '\n':
			line++
			endCommand()
		case ';', '|', '&', '(', ')':
			if b == '&' && strings.HasSuffix(text[:i], ">") {
				continue // 2>&1
			}
			endCommand()
		case '>', '<':
			if strings.Trim(word, "0123456789") == "" {
				word, inWord = "", false // the number of a file
			}
			endWord()
			redirect = true
		default:
			word, inWord = word+text[i:i+1], true
		}
	}
	endCommand()
	return all
}

func isName(s string) bool {
	return s != "" && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") == ""
}

// programs are what our docs may call besides our own program and make. A name that is not here may be a typing error.
var programs = map[string]bool{
	"cd": true, "cp": true, "curl": true, "envoy": true, "git": true, "go": true, "install": true, "kill": true,
	"mkdir": true, "redis-cli": true, "redis-server": true, "sudo": true, "wait": true,
}

// CheckCommands reports make targets, variables of the Makefile and paths of the tree that do not exist, and programs
// in fences that nobody runs. The flags of our own program are held to its model in cmd/sidecar.
func CheckCommands(docs []Document, tree Tree) []string {
	var p problems
	for _, c := range Commands(docs) {
		_, ours := c.Sidecar()
		switch {
		case c.Words[0] == "make":
			for _, word := range c.Words[1:] {
				if name, _, assigns := strings.Cut(word, "="); assigns {
					c.Env = append(c.Env, name+"=")
				} else if !tree.Targets[word] {
					p.add(c.Path, c.Line, "the Makefile has no target %s", word)
				}
			}
			for _, v := range c.Env {
				if name, _, _ := strings.Cut(v, "="); !tree.Variables[name] {
					p.add(c.Path, c.Line, "make knows no variable %s", name)
				}
			}
		case !ours && !c.Run && !programs[c.Words[0]]:
			p.add(c.Path, c.Line, "%s is no program that internal/doctest knows", c.Words[0])
		}
		for _, word := range c.Words {
			if file, ok := tree.inside(word); ok && !tree.Has(file) {
				p.add(c.Path, c.Line, "%s does not exist", word)
			}
		}
	}
	return p
}
