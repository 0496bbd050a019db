/* How the search of the site ranks: a guide whose title has the words of the query comes first.

Sphinx by itself gives a page 15 when any of its headings has a word of the query, 5 when only the text has one, and more
to the names of functions. `<!-- search: WORDS -->` at the top of a page adds words that its readers search for: conf.py
makes main entries of the index of them, which Sphinx gives up to 100. */
"use strict";

var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,

  /* What is looked up by its name, and what is read last: below every guide that has the words. */
  below: [
    [/^reference\//, 60],
    [/^(architecture|glossary|index|options|cli|security)$/, 12],
  ],

  stems: (text) => {
    const stemmer = new Stemmer();
    return new Set(splitQuery(text.toLowerCase()).map((word) => stemmer.stemWord(word)));
  },

  score: ([docname, title, _anchor, _description, score]) => {
    const asked = Scorer.stems(new URLSearchParams(window.location.search).get("q") || "");
    const named = Scorer.stems(title);
    const both = [...asked].filter((word) => named.has(word)).length;
    const fits = both ? (20 * both) / asked.size + (5 * both) / named.size : 0;
    const lower = Scorer.below.find(([pages]) => pages.test(docname));
    return score + fits - (lower ? lower[1] : 0);
  },
};
